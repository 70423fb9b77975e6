# SPDX-License-Identifier: Apache-2.0
"""Asks the engine: vLLM makes its config for the command of a check, in a process of its own.

Whatever becomes of that process, the check of the files stands.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vllm_eagle_ext.draft import Finding, Severity
from vllm_eagle_ext.draft.draft_files import JSON_LIMIT
from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.draft.headers import HEADER_LIMIT
from vllm_eagle_ext.draft.sources import Source, brief, open_source
from vllm_eagle_ext.errors import EagleExtError, OptionsError
from vllm_eagle_ext.printable import printable
from vllm_eagle_ext.start import dry_child
from vllm_eagle_ext.start.check import CheckResult, find_platform, read_release
from vllm_eagle_ext.start.described import DEVICES, lacks_packages
from vllm_eagle_ext.start.dry_child import CPU_S, TUPLE, DryRequest
from vllm_eagle_ext.start.serve import serve_environment, serve_words, served_from
from vllm_eagle_ext.version import INSTALL_VLLM, installed_vllm

Verdict = Literal["served", "refused", "not asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the engine said."""

    verdict: Verdict
    why: str = ""  # it was not asked
    failed: bool = False  # it was to be asked, and there is no answer
    inspected: bool = False  # it came to the draft's files
    findings: tuple[Finding, ...] = ()
    settled: Mapping[str, Any] = field(default_factory=dict)  # by vLLM
    device: str | None = None  # that was described
    plan: Mapping[str, Any] = field(default_factory=dict)  # by its planner, where there was room

    @property
    def is_asked(self) -> bool:
        return self.verdict != "not asked"


@dataclass(frozen=True, slots=True)
class Final:
    """Holds both stages of a check, of which the engine's wins where it was asked."""

    files: CheckResult
    answer: Answer
    further: Sequence[str] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        before, answer = self.files.inspection.findings, self.answer
        if not answer.is_asked:
            return before
        return answer.findings if answer.inspected else (*before, *answer.findings)

    @property
    def verdict(self) -> Verdict:
        """Return `not asked` only where the files allow the draft."""
        refused = any(finding.severity == Severity.ERROR for finding in self.findings)
        return "refused" if refused else self.answer.verdict

    @property
    def exit_code(self) -> int:
        unasked = 2 if self.answer.failed else 3
        return {"served": 0, "refused": 1, "not asked": unasked}[self.verdict]


def ask_engine(result: CheckResult, further: Sequence[str], room: int | None = None) -> Answer:
    """Let vLLM make its config for the command that a check would print.

    Args:
        further: words of `vllm serve`, which vLLM's own parser reads.
        room: bytes of a rank to plan caches in.

    Raises:
        OptionsError: the words are refused.
    """
    # Whether it can be asked here.
    request = result.request
    device, why = _device(request.platform, request.release)
    if why is not None:
        return Answer(verdict="not asked", why=why)
    # A process with a folder of its own, which has copies of configs that lie on a hub.
    with tempfile.TemporaryDirectory(prefix="vllm-dry-") as folder:
        try:
            places = fetch(result, Path(folder))
        except (EagleExtError, OSError) as error:
            return _failed(f"its files cannot be fetched: {brief(error)}")
        dry_request = DryRequest(
            words=serve_words(result, further=further), further=len(further), draft=served_from(result),
            files=result.files, places=places, device=device, room=room,
        )  # fmt: skip
        return read_answer(start_child(dry_request, Path(folder), serve_environment(result)), device)


def _failed(why: str) -> Answer:
    return Answer(verdict="not asked", why=why, failed=True)


def _device(platform: str, release: str | None) -> tuple[str | None, str | None]:
    """Return the device to describe, if one is to be, and why the engine is not asked, if it is not."""
    installed = installed_vllm()
    if installed is None or find_spec("vllm") is None:
        return None, "vLLM is not installed here"
    if release is not None and read_release(release) != installed.partition("+")[0]:
        return None, f"vLLM {installed} is installed here, not {release}"
    name, _, kind = platform.partition(":")
    here = find_platform("auto")[0]
    if name == "cpu" and here != "cpu":
        return None, f"the vLLM that is installed here is built for {here}"
    has_gpu = here == "cuda" and os.path.exists("/proc/driver/nvidia/version")
    if name != "cuda" or (has_gpu and not kind):
        return None, None
    device = kind or next(iter(DEVICES))
    if missing := lacks_packages(device):
        return None, f"vLLM chooses kernels of a {device} by {missing}, which is not installed here"
    return device, None


def read_answer(said: Mapping[str, Any], device: str | None = None) -> Answer:
    """Read what a child wrote.

    Raises:
        OptionsError: vLLM's parser refused the words.
    """
    if "usage" in said:
        raise OptionsError(
            field="words after --", value="not taken by vLLM's parser",
            allowed=f"options of the engine in `vllm serve` ({said['usage']})",
            remedy="correct them, or leave them out",
        )  # fmt: skip
    if "import_error" in said:
        return _failed(f"vLLM cannot be imported ({said['import_error']}). {INSTALL_VLLM}")
    if why := said.get("not_asked") or said.get("failed"):
        return _failed(str(why))
    try:
        findings = tuple(map(_finding, said["findings"]))
    except (KeyError, TypeError, ValueError):
        return _failed("its answer cannot be read")
    refused = any(finding.severity == Severity.ERROR for finding in findings)
    return Answer(
        verdict="refused" if refused else "served", inspected=bool(said.get("inspected")),
        findings=findings, settled=dict(said.get("settled") or {}), device=device,
        plan=dict(said.get("plan") or {}),
    )  # fmt: skip


def _finding(written: Mapping[str, Any]) -> Finding:
    problem = dict(written["problem"])
    value = problem["value"]
    if isinstance(value, dict) and value.keys() == {TUPLE}:
        problem["value"] = tuple(value[TUPLE])
    return Finding(
        str(written["rule"]), Severity(written["severity"]), Problem(**problem),
        bool(written["can_run"]), written["follows_from"],
    )  # fmt: skip


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
            model, revision=revision, download_dir=request.download_dir, subfolders=request.subfolders,
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
    question, answer, errors = (folder / name for name in ("request", "answer", "stderr"))
    question.write_bytes(pickle.dumps(request))
    # The process ends by itself, or with all of its own beyond a limit.
    command = [sys.executable, "-P", "-m", dry_child.__name__, str(question), str(answer)]
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
            said = json.loads(answer.read_bytes())
            if isinstance(said, dict):
                return said
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
