# SPDX-License-Identifier: Apache-2.0
"""Reads in vLLM's source whether a model class hands out the hidden states of its layers.

An import would tell too, but may start CUDA, which vLLM puts off in the front end. Where a platform has
a class of its own, one that has the interface counts for all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

INTERFACE = "SupportsEagle3"
_DEPTH = 8  # of imports that lead from one module to the next


@cache
def has_interface(module: str, name: str) -> bool:
    """Tell whether a class of vLLM, or one that it comes from, names `SupportsEagle3`.

    Args:
        module: its dotted name, which begins with "vllm.".
        name: of the class.
    """
    return any(_inherits(*definition, frozenset()) for definition in _definitions(module, name))


def _inherits(module: str, node: ast.ClassDef, below: frozenset[tuple[str, int]]) -> bool:
    place = (module, node.lineno)
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    if place in below or INTERFACE in bases:  # a cycle of names ends here
        return place not in below
    return any(
        _inherits(*definition, below | {place})
        for base in bases
        for definition in _definitions(module, base)
    )


def _definitions(module: str, name: str, depth: int = 0) -> Iterator[tuple[str, ast.ClassDef]]:
    """Find what a name may stand for: a class, another name for one, or one of each platform."""
    for node in _statements(module) if depth < _DEPTH else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield module, node
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if name in map(ast.unparse, node.targets):
                yield from _definitions(module, node.value.id, depth + 1)
        elif isinstance(node, ast.ImportFrom) and (source := _imported(module, node)) != module:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    yield from _definitions(source, alias.name, depth + 1)


@cache
def _statements(module: str) -> tuple[ast.stmt, ...]:
    """Return a module's classes, assignments and imports; none where there is no file."""
    path = _file(module)
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    kinds = (ast.ClassDef, ast.Assign, ast.ImportFrom)
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def _file(module: str) -> Path:
    import vllm

    base = Path(vllm.__file__).parents[1].joinpath(*module.split("."))
    return base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"


def _imported(module: str, node: ast.ImportFrom) -> str:
    """Name the module that an import reads."""
    if not node.level:
        return str(node.module)
    is_package = _file(module).name == "__init__.py"
    parts = module.split(".")
    above = parts[: len(parts) - node.level + is_package]
    return ".".join([*above, *filter(None, [node.module])])
