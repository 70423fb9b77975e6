"""Checks the surface against a vLLM source tree, by reading it: nothing is imported."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tests.contract.name import Name
from tests.contract.surface import SURFACE

ReadModule = Callable[[str], str]  # module name -> source text, FileNotFoundError if it is not there


def installed_source(module: str) -> str:
    import vllm

    return folder_source(Path(vllm.__file__).parents[1])(module)


def folder_source(folder: Path) -> ReadModule:
    """Modules of a source tree: the folder that holds `vllm/`, or `vllm/` itself."""
    root = folder.parent if folder.name == "vllm" and not (folder / "vllm").is_dir() else folder
    if not (root / "vllm/__init__.py").is_file():
        raise SystemExit(f"{folder} is no source tree of vLLM: it holds no vllm/__init__.py.")

    def read(module: str) -> str:
        base = root.joinpath(*module.split("."))
        path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
        return path.read_text(encoding="utf-8")

    return read


def stated_release(read: ReadModule) -> str:
    """The version that a built tree states; "": it does not, as one fresh from version control."""
    try:
        match = re.search(r"""^(?:__version__ = )?version = ['"]([^'"]+)""", read("vllm._version"), re.M)
    except FileNotFoundError:
        return ""
    try:
        return str(Version(match[1])) if match else ""
    except InvalidVersion:
        return ""


def wheel_source(wheel: Path) -> ReadModule:
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())

    def read(module: str) -> str:
        base = module.replace(".", "/")
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in names:
                return archive.read(name).decode()
        raise FileNotFoundError(module)

    return read


def failures(read: ReadModule, release: str) -> list[str]:
    parse = lru_cache(maxsize=None)(lambda module: ast.parse(read(module)))
    entries = [entry for entry in SURFACE if entry.holds_in(release)]
    return [problem for entry in entries for problem in check(entry, parse)]


def check(entry: Name, parse: Callable[[str], ast.Module]) -> list[str]:
    path = entry.name.split(".")
    try:
        node = next((node for module in entry.modules if (node := find(parse(module), path))), None)
    except FileNotFoundError:
        return [f"{entry.id}: no such module ({entry.why})"]
    if node is None:
        return [f"{entry.id}: no such name ({entry.why})"]
    return [f"{entry.id}: {problem} ({entry.why})" for problem in _differences(entry, node)]


def find(scope: ast.AST, path: list[str]) -> ast.stmt | None:
    for node in ast.iter_child_nodes(scope):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == path[0]
        ):
            return node if len(path) == 1 else find(node, path[1:])
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == path[0] for t in targets):
            return node
        if isinstance(node, ast.Try | ast.If) and (inner := find(node, path)) is not None:
            return inner
        if isinstance(node, ast.ImportFrom) and any(
            path[0] in (alias.asname, alias.name) for alias in node.names
        ):
            return node
    return None


def _differences(entry: Name, node: ast.stmt) -> list[str]:
    problems = []
    if entry.parameters is not None or entry.accepts:
        names = _parameter_names(node)
        if entry.parameters is not None and names != entry.parameters:
            problems.append(f"parameters are {names}, not {entry.parameters}")
        if missing := set(entry.accepts) - set(names):
            problems.append(f"parameters lack {sorted(missing)}")
    if entry.optional and (needed := _needed_parameters(node)):
        problems.append(f"parameters {needed} may not be left out")
    text = ast.unparse(node)
    problems += [f"no longer has `{piece}`" for piece in entry.contains if piece not in text]
    return problems


def _needed_parameters(node: ast.stmt) -> list[str]:
    if not isinstance(node, ast.FunctionDef):
        return []
    arguments = node.args
    placed = [*arguments.posonlyargs, *arguments.args]
    named = [
        a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    ]
    return [a.arg for a in (*placed[: len(placed) - len(arguments.defaults)], *named)]


def _parameter_names(node: ast.stmt) -> tuple[str, ...]:
    if not isinstance(node, ast.FunctionDef):
        return ()
    arguments = node.args
    return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
