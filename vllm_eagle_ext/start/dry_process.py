# SPDX-License-Identifier: Apache-2.0
"""Runs the process of a dry start on what its parent has fetched, and ends it beyond its limits."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.draft_files import JSON_LIMIT
from vllm_eagle_ext.draft.headers import HEADER_LIMIT
from vllm_eagle_ext.draft.sources import Source, open_source
from vllm_eagle_ext.printable import printable
from vllm_eagle_ext.start import dry_child
from vllm_eagle_ext.start.check import CheckResult
from vllm_eagle_ext.start.dry_child import CPU_S, DryRequest
from vllm_eagle_ext.start.serve import served_from

WALL_S = 60
RESIDENT = 4 * 2**30  # bytes
_MOST_ANSWER = 8 * 2**20  # bytes
_BRIEF = 300
_OURS = "eagle_ext"  # our entry point, without which a start is plain vLLM's
# What vLLM reads of a checkpoint for its config.
_CONFIGS = (
    "config.json", "generation_config.json", "hf_quant_config.json", "quantize_config.json",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "params.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
)  # fmt: skip


def fetch(result: CheckResult, folder: Path) -> dict[str, str]:
    """Copy configs of checkpoints that lie in no folder; return their names -> the copies.

    Raises:
        EagleExtError: a file cannot be read.
    """
    request, draft = result.request, served_from(result)
    named = (
        (result.target_name, result.target_name, request.target_revision),
        (draft, request.draft, request.revision),
    )
    places: dict[str, str] = {}
    for name, model, revision in named:
        if os.path.isdir(os.path.expanduser(name)):
            continue
        source = open_source(
            model, revision=revision, token=request.token, download_dir=request.download_dir,
            subfolders=request.subfolders,
        )  # fmt: skip
        place = folder / "checkpoints" / f"{len(places)}" / Path(name).name
        place.mkdir(parents=True)
        _copy_configs(source, place)
        places[name] = str(place)
    return places


def _copy_configs(source: Source, place: Path) -> None:
    """Copy what vLLM reads; of weights only headers, which it asks for a dtype that no config states."""
    files = source.files()
    for name in _CONFIGS:
        if name in files and files[name] <= JSON_LIMIT:
            (place / name).write_bytes(source.read(name, 0, JSON_LIMIT))
    config = (place / "config.json").read_bytes() if "config.json" in files else b""
    if b"dtype" in config:
        return
    for name, size in files.items():
        if not name.endswith(".safetensors") or os.path.basename(name) != name:
            continue
        length = 8 + int.from_bytes(source.read(name, 0, 8), "little")
        if length <= min(size, HEADER_LIMIT):
            (place / name).write_bytes(source.read(name, 0, length))
            os.truncate(place / name, size)  # takes no room


def start_child(request: DryRequest, folder: Path, settings: Mapping[str, str]) -> Mapping[str, Any]:
    """Run a dry start, and return what its process wrote, or `failed` with the reason.

    Args:
        folder: for this start only; it may be filled.
        settings: variables of the command.
    """
    asked, answer, errors = (folder / name for name in ("request", "answer", "stderr"))
    asked.write_bytes(pickle.dumps(request))
    # The process ends by itself, or with all of its own beyond a limit.
    command = [sys.executable, "-P", "-m", dry_child.__name__, str(asked), str(answer)]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            start_new_session=True, env=_environment(folder, settings),
        )  # fmt: skip
    try:
        why = _wait(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    # A stranger's values are in what it wrote.
    with suppress(OSError, ValueError):
        if why is None and status == 0 and answer.stat().st_size > _MOST_ANSWER:
            why = f"it wrote more than {_MOST_ANSWER >> 20} MiB"
        elif why is None and status == 0:
            found = json.loads(answer.read_bytes())
            if isinstance(found, dict):
                return found
    return {"failed": why or _of_status(status, errors)}


def _environment(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the child's variables: no hub, no telemetry, and caches that go with the folder."""
    given = {name: value for name, value in os.environ.items() if name != "VLLM_USE_MODELSCOPE"}
    caches = dict.fromkeys(
        (
            "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
            "HF_MODULES_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR",
        ), str(folder / "cache"),
    )  # fmt: skip
    switches = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CONFIGURE_LOGGING": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder),
    }  # fmt: skip
    if plugins := given.get("VLLM_PLUGINS"):
        switches["VLLM_PLUGINS"] = f"{plugins},{_OURS}"
    home = Path(given.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = {} if "HF_HOME" in given else {"HF_HOME": str(home / "huggingface")}
    return {**given, **hub, **caches, **switches, **settings}


def _wait(process: subprocess.Popen[bytes]) -> str | None:
    """Wait until a process ends; say why it must be ended, where it must."""
    end = time.monotonic() + WALL_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
            return None
        if time.monotonic() > end:
            return f"it took more than {WALL_S} s"
        if _resident(process.pid) > RESIDENT:
            return f"it took more than {RESIDENT >> 30} GiB of memory"


def _resident(process: int) -> int:
    """Return the bytes of memory that a process has; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _of_status(status: int, errors: Path) -> str:
    if status == -signal.SIGXCPU:
        return f"it took more than {CPU_S} s of CPU time"
    with suppress(OSError):
        with errors.open("rb") as file:
            file.seek(max(0, errors.stat().st_size - 4000))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return f"it ended with status {status}: {printable(lines[-1].strip()[:_BRIEF])}"
    return f"it ended with status {status}"
