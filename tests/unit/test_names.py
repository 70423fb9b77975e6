"""One name for one thing: what stands twice in the package is listed here with its reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.support.engine import ROOT

PACKAGE = ROOT / "vllm_eagle_ext"

# Modules and folders. Those of one name play the same part beside each other.
MODULES = {
    "__init__": "Python's",
    "advice": "what the figures say to do: of a bench, of a plan",
    "config_writer": "what a drafter family writes into vLLM's config",
    "command": "a command of the command line, as typed",
    "model": "a drafter's model class",
    "request": "what a command of measuring was asked",
    "run": "what a command does, once its options are read",
    "table": "how a command's result looks on a terminal",
    "bench": "the command in cli/, its work in measure/",
    "verify": "the command in cli/, its work in measure/",
    "selftest": "the command in cli/, its work in measure/",
    "plan": "the command in cli/, its work in memory/",
    "dflash": "the drafter, and its plain PyTorch reference",
    "eagle3": "the drafter, and its plain PyTorch reference",
    "reference": "what drafts, and what the operations of replay, are compared with",
}
# Functions and classes at the top of a module.
NAMES = {
    "__getattr__": "PEP 562",
    "build_speculative_config": "the preflight, and the plugin's stand-in that imports it when needed",
    "register": "the plugin's entry point, kept free of imports, and its work",
    "to_json": "a command's result for programs",
    # The operations of replay, offered side by side by each implementation of them.
    "ApplyPlan": "replay/ops",
    "gather_blocks": "replay/ops",
    "plan": "replay/ops, and the command",
    "verify": "replay/ops",
    "_verify": "replay/ops, the Triton kernels",
    "_apply_states": "replay/ops, the Triton kernels",
    "write": "a drafter family's part of vLLM's config",
}


def twice(found: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that stand in several places, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in found:
        places[name].append(str(path.relative_to(PACKAGE)))
    return {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}


def modules() -> Iterable[tuple[str, Path]]:
    for path in PACKAGE.rglob("*.py"):
        yield (path.stem, path)
        if path.stem == "__init__" and path.parent != PACKAGE:
            yield (path.parent.name, path)


def names() -> Iterable[tuple[str, Path]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield (node.name, path)


def test_modules():
    found = twice(modules())
    assert {name: paths for name, paths in found.items() if name not in MODULES} == {}
    assert set(MODULES) - set(found) == set(), "no longer twice: take it out of the list"


def test_functions_and_classes():
    found = twice(names())
    assert {name: paths for name, paths in found.items() if name not in NAMES} == {}
    assert set(NAMES) - set(found) == set(), "no longer twice: take it out of the list"
