# SPDX-License-Identifier: Apache-2.0
"""Runs the process of a dry start on what its parent has fetched, and ends it beyond its limits."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vllm_eagle_ext.checkpoint.draft_files import JSON_LIMIT
from vllm_eagle_ext.checkpoint.headers import HEADER_LIMIT
from vllm_eagle_ext.checkpoint.sources import Source, open_source
from vllm_eagle_ext.preflight import dry_child
from vllm_eagle_ext.preflight.check import CheckResult
from vllm_eagle_ext.preflight.dry_child import CPU_S, DryRequest
from vllm_eagle_ext.preflight.serve import served_from
from vllm_eagle_ext.printable import printable

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
    named = [(result.target_name, result.target_name, request.target_revision)]
    named.append((draft, request.draft, request.revision))
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
    path = folder / "request"
    path.write_bytes(pickle.dumps(request))
    with _child(path, folder, settings) as (process, reader, errors):
        written = b""
        for why in _until_its_end(process, reader):
            if isinstance(why, bytes):
                written += why
            else:
                return {"failed": why}
        try:
            status = process.wait(timeout=WALL_S)
        except subprocess.TimeoutExpired:
            return {"failed": f"it took more than {WALL_S} s to end"}
        if status == 0:
            with suppress(ValueError):
                found = json.loads(written)
                if isinstance(found, dict):
                    return found
        return {"failed": _of_status(status, errors)}


@contextmanager
def _child(path: Path, folder: Path, settings: Mapping[str, str]) -> Iterator[tuple[Any, int, Path]]:
    reader, writer = os.pipe()
    errors = folder / "stderr"
    command = [sys.executable, "-P", "-m", dry_child.__name__, str(path), str(writer)]
    try:
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
                pass_fds=(writer,), start_new_session=True, env=_environment(folder, settings),
            )  # fmt: skip
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        yield process, reader, errors
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reader)


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


def _until_its_end(process: Any, reader: int) -> Iterator[bytes | str]:
    """Yield what a process writes until it ends, or why it was ended."""
    end = time.monotonic() + WALL_S
    size = 0
    while True:
        ready, _, _ = select.select([reader], [], [], 0.1)
        if ready:
            read = os.read(reader, 1 << 16)
            size += len(read)
            if not read:
                return
            yield read
        if size > _MOST_ANSWER:
            yield f"it wrote more than {_MOST_ANSWER >> 20} MiB"
        if time.monotonic() > end:
            yield f"it took more than {WALL_S} s"
        if _resident(process.pid) > RESIDENT:
            yield f"it took more than {RESIDENT >> 30} GiB of memory"


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
