"""The cases, and what is said of them."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

Cases = dict[str, str]  # name -> lines
_OTHERS = re.compile(r"( at )?0x[0-9a-f]{6,}")
# An option, at what it takes and at what it does not.
OPTIONS: list[dict[str, Any]] = [
    {"enabled": False}, {"strict": False}, {"untested_vllm": True}, {"aux_layers": "input"},
    {"aux_layers": "output"}, {"aux_layers": [0, 2, 4]}, {"aux_layers": [1, 2, 99]}, {"aux_layers": [4]},
    {"gate_layout": "interleaved"}, {"gate_layout": "concat"}, {"draft_window": 2}, {"draft_window": 64},
    {"draft_window": "auto"}, {"draft_vocabulary": "$FOLDER/ids.json"}, {"draft_vocabulary": "nowhere"},
    {"norm_output": True}, {"norm_output": False}, {"norm_output": "checkpoint"},
    {"hybrid_state": "replay"}, {"hybrid_state": "per_token"}, {"replay_kernels": "sequential"},
    {"replay_kernels": "chunked"}, {"adaptive_verification": True},
    {"strict": False, "aux_layers": [1, 2, 99]}, {"strict": False, "hybrid_state": "replay"},
]  # fmt: skip


def finding_lines(findings: Iterable[Any]) -> Iterator[str]:
    from vllm_eagle_ext.printable import shown

    for f in findings:
        problem, after = f.problem, f" (after {f.follows_from})" if f.follows_from else ""
        parts = (problem.field, repr(problem.value), problem.allowed, problem.remedy, problem.message)
        said = " | ".join(shown(part) for part in parts).rstrip(" |")
        yield f"{f.severity} {f.rule}{after}: {said}"


def inspected(inspection: Any) -> str:
    status = "refused" if inspection.errors else "served" if inspection.case else "passed"
    return "\n".join([status, *finding_lines(inspection.findings)])


def checked(request: dict[str, Any]) -> str:
    """One platform's answer where both are the same."""
    # "auto" is the CPU's build, which is also judged by the release that is here.
    asked = {"cuda": "cuda", "cpu": "auto"}
    said = {name: _checked(request | {"platform": word}) for name, word in asked.items()}
    if said["cuda"] == said["cpu"]:
        return f"check {said['cuda']}"
    return "\n".join(f"check {platform} {text}" for platform, text in said.items())


def _checked(request: dict[str, Any]) -> str:
    from tests.support.warm_child import start_warmly, words_of
    from vllm_eagle_ext.errors import EagleExtError
    from vllm_eagle_ext.start import dry
    from vllm_eagle_ext.start.check import CheckRequest, run_check

    ours = ("max_model_len", "tensor_parallel_size")
    engine = request.get("engine", {})
    asked = request | {"engine": {key: value for key, value in engine.items() if key in ours}}
    words = words_of({key: value for key, value in engine.items() if key not in ours})
    dry.start_child = start_warmly
    try:
        result = run_check(CheckRequest(**asked))
        final = dry.Final(result, dry.ask_engine(result, words))
    except EagleExtError as error:
        return f"exit 2\n{type(error).__name__}: {error}"
    return "\n".join([f"exit {final.exit_code}", *finding_lines(final.findings)])


def mutation(family: str, folder: Path) -> Cases:
    from tests.support.mutations import mutants
    from tests.unit.families.test_mutations import inspect

    lines: Cases = {}
    for mutant in mutants(family):
        name, again = f"{family}, {mutant.operator}, {mutant.label}", 1
        while name in lines:
            again += 1
            name = f"{family}, {mutant.operator}, {mutant.label} ({again})"
        place = folder / "mutant"
        lines[name] = inspected(inspect(mutant, place))
        shutil.rmtree(place)
    return lines


def rule(folder: Path) -> Cases:
    from tests.unit.draft.rules.broken import inspect_broken
    from tests.unit.draft.rules.cases import CASES

    lines = {}
    for at, param in enumerate(CASES):
        (broken,) = param.values
        lines[param.id] = inspected(inspect_broken(broken, folder / f"{at}"))
        relaxed = inspect_broken(broken, folder / f"{at}-relaxed", strict=False)
        # The texts are the same: unit tests hold them to it.
        short = (f"{f.severity} {f.rule}" for f in relaxed.findings)
        lines[param.id] += f"\nwith strict false: {', '.join(short)}"
    return lines


def published(folder: Path) -> Cases:
    from tests.support.published import materialise, write_target
    from tests.support.published import published as drafts

    lines = {}
    for draft in drafts():
        request: dict[str, Any] = {
            "draft": str(materialise(draft, folder / draft.slug / "draft")), "method": draft.method,
            "target": str(write_target(draft, folder / draft.slug / "target")), "k": draft.k,
            "options": {}, "engine": {"max_model_len": 4096},
        }  # fmt: skip
        lines[draft.slug] = checked(request)
    return lines


def option(folder: Path) -> Cases:
    from tests.support.checkpoints import write_target
    from tests.support.drafts import FAMILIES, valid_draft, write
    from tests.support.engine import TINY

    (folder / "ids.json").write_text(json.dumps(list(range(0, 96, 2))))
    target, lines = write_target(folder / "target"), {}
    drafts = {family: (write(valid_draft(family), folder / family), target) for family in FAMILIES}
    drafts |= {"hybrid": (TINY / "dflash", TINY / "hybrid_target")}
    for name, (draft, beside) in drafts.items():
        for given in [{}, *OPTIONS]:
            options = json.loads(json.dumps(given).replace("$FOLDER", str(folder)))
            request: dict[str, Any] = {"draft": str(draft), "target": str(beside), "options": options}
            lines[f"{name}, {json.dumps(given)}"] = checked(request)
    return lines | {f"given {given!r}": parsed(given) for given in _of_the_tests()}


def _of_the_tests() -> Iterator[Any]:
    """What the tests of the options hand to vLLM's `additional_config`."""
    tests = import_module("tests.unit.test_options")
    for name in sorted(vars(tests)):
        for mark in getattr(getattr(tests, name), "pytestmark", ()):
            if mark.name != "parametrize":
                continue
            names, rows = mark.args[:2]
            first = names if isinstance(names, str) else names[0]
            for row in rows:
                given = getattr(row, "values", row)
                given = given[0] if isinstance(given, tuple) else given
                if first == "given" and isinstance(given, dict):
                    yield given
                    yield {"eagle_ext": given}


def parsed(given: Any) -> str:
    from vllm_eagle_ext.errors import OptionsError
    from vllm_eagle_ext.options import parse_options

    try:
        return f"options {parse_options(given)}"
    except OptionsError as error:
        return str(error)


def start(folder: Path) -> Cases:
    from tests.support import warm_starts
    from tests.support.start_cases import start_cases

    cases, lines = start_cases(folder), {}
    said = {case.name: checked(case.checked("auto")) for case in cases}  # before vLLM is imported
    warm_starts.warm(str(folder / "cache"), [case.started() for case in cases[:3]])
    for case in cases:
        answer = warm_starts.start(case.started())
        logged = answer.pop("logged")
        verdict = "served" if answer.pop("served") else "refused"
        is_vllms = answer.pop("by", "") == "vLLM"  # which may list all that it knows
        text = answer.get("error") or ", ".join(f"{key} {value}" for key, value in answer.items())
        text = _anywhere(text, str(folder))[: 400 if is_vllms else None]
        lines[case.name] = "\n".join([said[case.name], f"start {verdict}: {text}", *logged])
    return lines


def tasks_of(sections: list[str]) -> dict[str, Callable[[Path], Cases]]:
    """The longest first."""
    from tests.support.drafts import FAMILIES

    tasks: dict[str, Callable[[Path], Cases]] = {"start": start}
    tasks |= {f"mutation {family}": partial(mutation, family) for family in reversed(FAMILIES)}
    tasks |= {"rule": rule, "published": published, "option": option}
    return {name: tasks[name] for name in tasks if not sections or name.split()[0] in sections}


def run(name: str, task: Callable[[Path], Cases]) -> tuple[Cases, float]:
    _pin()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        lines = task(Path(folder))
        section = name.split()[0]
        said = {f"{section}: {case}": _anywhere(text, folder) for case, text in lines.items()}
        said = {case: text.replace("\n", "\n  ") for case, text in said.items()}
    return said, time.perf_counter() - began


def _anywhere(text: str, folder: str) -> str:
    """The text without what differs from machine to machine."""
    from tests.support.engine import ROOT
    from vllm_eagle_ext.version import installed_vllm

    known = {folder: "$FOLDER", str(ROOT): "$ROOT", str(installed_vllm()): "$RELEASE"}
    for word, name in known.items():
        text = text.replace(word, name)
    return _OTHERS.sub("", text).strip()


def _pin() -> None:
    import torch

    torch.set_num_threads(1)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    dirs = os.environ["PATH"].split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(p for p in dirs if not Path(p, "nvidia-smi").exists())
