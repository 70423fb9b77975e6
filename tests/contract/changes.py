"""What another vLLM changes, next to the surface: faults to look at again, and fields of configs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from tests.contract.check import ReadModule, find

FAULTS = Path(__file__).parents[2] / "docs/dev/vllm_faults"
# Modules and classes whose fields a user or this package sets.
CONFIGS = (
    ("vllm.config.speculative", "SpeculativeConfig"),
    ("vllm.config.cache", "CacheConfig"),
    ("vllm.config.parallel", "ParallelConfig"),
    ("vllm.config.model", "ModelConfig"),
    ("vllm.config.scheduler", "SchedulerConfig"),
    ("vllm.config.attention", "AttentionConfig"),
    ("vllm.config.vllm", "VllmConfig"),
    ("vllm.engine.arg_utils", "EngineArgs"),
)
_PLACE = re.compile(r"`(?:vllm/)?([\w/]+)\.py`,\s+`([\w.]+)`")


def faults() -> dict[str, list[tuple[str, list[str]]]]:
    """Places that the page of faults names as their cause, module and path, by the fault's name."""
    return {
        script.stem: [
            (f"vllm.{module.replace('/', '.')}", name.split("."))
            for module, name in _PLACE.findall(_cause(script))
        ]
        for script in sorted(FAULTS.rglob("*.py"))
    }


def fixed_faults(release: str) -> list[str]:
    """The faults whose page says that they are fixed by this release."""
    names = []
    for script in sorted(FAULTS.rglob("*.py")):
        fixed = re.search(r"fixed in ([\d.]+\d)", ast.get_docstring(ast.parse(script.read_text())) or "")
        if fixed and Version(fixed[1]) <= Version(release):
            names.append(script.stem)
    return names


def _cause(script: Path) -> str:
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return text.partition("\nCause:")[2].partition("\nReleases:")[0]


def faults_to_look_at(before: ReadModule, after: ReadModule) -> Iterator[str]:
    """Name each fault of which a place was changed or has gone, with the place."""
    for fault, places in faults().items():
        for module, path in places:
            old, new = (text_of(read, module, path) for read in (before, after))
            if old is not None and old != new:
                what = "has gone" if new is None else "was changed"
                yield f"{fault}: {module}:{'.'.join(path)} {what}"


def changed_fields(before: ReadModule, after: ReadModule) -> Iterator[str]:
    for module, name in CONFIGS:
        old, new = (_fields(read, module, name) for read in (before, after))
        for word, fields in (("new", new - old), ("gone", old - new)):
            if fields:
                yield f"{name}: {word} {', '.join(sorted(fields))}"


def text_of(read: ReadModule, module: str, path: list[str]) -> str | None:
    try:
        node = find(ast.parse(read(module)), path)
    except FileNotFoundError:
        return None
    return None if node is None else ast.unparse(node)


def _fields(read: ReadModule, module: str, name: str) -> set[str]:
    node = find(ast.parse(read(module)), [name])
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {
        entry.target.id
        for entry in body
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
    }
