"""Holds the project to a size: `python -m tools.budget` prints each figure next to its limit in
budget.toml, and fails where one is above. A change that lowers a figure lowers its limit."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = ROOT / "tools/budget.toml"


def figures(folder: str, root: Path = ROOT) -> dict[str, int]:
    """Count a folder's Python files, and their longest module and function; of "pages" all words."""
    if folder == "pages":
        return {"words": sum(len(page.split()) for page in _tracked("*.md", root))}
    texts = _tracked(f"{folder}/*.py", root)
    size = sum(map(len, texts))
    lines = sum(text.count(b"\n") for text in texts)
    return {
        "lines": lines,
        "kB": -(-size // 1000),
        "modules": len(texts),
        "lines of a module": max(text.count(b"\n") for text in texts),
        "lines of a function": max(map(_longest_function, texts)),
    }


def _tracked(pattern: str, root: Path) -> list[bytes]:
    names = ["git", "ls-files", "-z", "--", pattern]
    listed = subprocess.check_output(names, cwd=root, text=True).split("\0")
    return [(root / name).read_bytes() for name in listed if name and (root / name).exists()]


def _longest_function(text: bytes) -> int:
    """Count a function without its docstring. A kernel of Triton's cannot be cut: it counts as none."""
    longest = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not any(map(_is_jit, node.decorator_list)):
            docstring = len((ast.get_docstring(node) or "").splitlines())
            longest = max(longest, (node.end_lineno or 0) - node.lineno + 1 - docstring)
    return longest


def _is_jit(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("triton.jit")


def excesses(limits: dict[str, dict[str, int]], root: Path = ROOT) -> list[str]:
    """Print each figure with its limit, and return those that are above."""
    above = []
    for folder, allowed in limits.items():
        counted = figures(folder, root)
        for unit, most in allowed.items():
            line = f"{folder}: {counted[unit]:,} of {most:,} {unit}"
            print(line)
            if counted[unit] > most:
                above.append(f"{line}: remove as much as you add, or say in the commit why not")
    return above


if __name__ == "__main__":
    sys.exit("\n".join(excesses(tomllib.loads(LIMITS.read_text(encoding="utf-8")))) or 0)
