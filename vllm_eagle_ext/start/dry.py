# SPDX-License-Identifier: Apache-2.0
"""Asks the engine: vLLM makes its config for the command of a check, in a process of its own.

Whatever becomes of that process, the check of the files stands.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vllm_eagle_ext.draft import Finding, Severity
from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.errors import EagleExtError, OptionsError
from vllm_eagle_ext.start.check import CheckRequest, CheckResult
from vllm_eagle_ext.start.described import DEVICES, lacks_packages
from vllm_eagle_ext.start.dry_child import TUPLE, DryRequest, brief
from vllm_eagle_ext.start.dry_process import fetch, start_child
from vllm_eagle_ext.start.platforms import find_platform, read_release
from vllm_eagle_ext.start.serve import is_named, serve_environment, serve_words, served_from
from vllm_eagle_ext.version import INSTALL_VLLM, installed_vllm

_SHORT = {"-tp": "--tensor-parallel-size", "-sc": "--speculative-config"}

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
        OptionsError: the words are refused, or name what an option of the check names.
    """
    # Whether it can be asked here.
    request = result.request
    refuse_named_twice(request, further)
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
            words=serve_words(result, further=further), draft=served_from(result), files=result.files,
            places=places, device=device, room=room,
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


def refuse_named_twice(request: CheckRequest, further: Sequence[str]) -> None:
    """Refuse an option that the check has and that the words after `--` name again.

    Raises:
        OptionsError: with its name.
    """
    engine = request.engine
    ours = {
        "model": ("--target", True), "speculative-config": ("DRAFT and --speculative", True),
        "spec-method": ("--method", True), "spec-model": ("DRAFT", True), "spec-tokens": ("-k", True),
        "max-model-len": ("--max-model-len", engine.get("max_model_len") is not None),
        "tensor-parallel-size": ("--tp", engine.get("tensor_parallel_size", 1) != 1),
        "revision": ("--target-revision", engine.get("revision") is not None),
        "download-dir": ("--download-dir", engine.get("download_dir") is not None),
        "additional-config": ("--eagle-ext", bool(request.options)),
    }  # fmt: skip
    words = [_SHORT.get(word.partition("=")[0], word) for word in further]
    for option, (own, is_given) in ours.items():
        if is_given and is_named(option, words):
            raise OptionsError(
                field=f"--{option} after --", value="named twice", allowed=f"one place: {own}",
                remedy=f"leave it out after --, where {own} says it",
            )  # fmt: skip


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
