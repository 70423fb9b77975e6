"""The package keeps to the layers of docs/dev/architecture.md, which its script writes.

Imports inside functions count: they make a cycle as well, only later. An import under TYPE_CHECKING
never runs, so it can close no cycle, but it is knowledge of another layer and is held to the table.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter

import pytest

from tools import architecture
from tools.architecture import LAYERS, ROOT

PACKAGE = "vllm_eagle_ext"


@dataclass(frozen=True)
class Import:
    by: str  # dotted name of the module
    of: str  # dotted name of the module that is imported
    names: tuple[str, ...]
    line: int
    for_types: bool

    def __str__(self) -> str:
        return f"{self.by}:{self.line} imports {self.of}"


def modules() -> dict[str, str]:
    """Dotted name -> source, of every module of the package."""
    sources = {}
    for path in (ROOT / PACKAGE).rglob("*.py"):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        sources[dotted.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return sources


MODULES = modules()
PACKAGES = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / PACKAGE).rglob("__init__.py")}


def type_checking_lines(tree: ast.Module) -> set[int]:
    """Lines in the bodies of `if TYPE_CHECKING:`."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in node.body
        for line in range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)
    }


def absolute(by: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parent = by.split(".") if by in PACKAGES else by.split(".")[:-1]
    parent = parent[: len(parent) - node.level + 1]
    return ".".join([*parent, *([node.module] if node.module else [])])


def imports_of(by: str, source: str) -> Iterator[Import]:
    """Every import statement of a module, wherever it stands."""
    tree = ast.parse(source)
    unrun = type_checking_lines(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(by, alias.name, (), node.lineno, node.lineno in unrun)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(by, node)
            for alias in node.names:
                of = f"{base}.{alias.name}"
                is_module = of in MODULES
                yield Import(
                    by, of if is_module else base, () if is_module else (alias.name,),
                    node.lineno, node.lineno in unrun,
                )  # fmt: skip


EVERY = [imp for name, source in MODULES.items() for imp in imports_of(name, source)]
OWN = [imp for imp in EVERY if imp.of.split(".")[0] == PACKAGE]


def layer_of(module: str) -> str | None:
    """None of the package itself, which is tested apart."""
    _, _, rest = module.partition(".")
    layer = architecture.layer_of(rest)
    return layer.name if rest and layer else None


def test_every_module_lies_in_one_layer():
    top = {name.split(".")[1] for name in MODULES if "." in name}
    named = [name for layer in LAYERS for name in layer.modules]
    assert top == {name for name in named if "." not in name}
    assert len(named) == len(set(named))
    within = {name.partition(".")[2] for name in MODULES}
    assert all(fnmatch.filter(within, name) for name in named if "." in name)


def test_layers_only_import_what_stands_below_them():
    """So that no two layers can import each other, whatever their modules do."""
    below: set[str] = set()
    for layer in LAYERS:
        assert set(layer.may_import) <= below, layer.name
        below.add(layer.name)


def test_no_import_goes_past_the_table():
    allowed = {layer.name: {layer.name, *layer.may_import} for layer in LAYERS}
    forbidden = [
        str(imp)
        for imp in OWN
        if "." in imp.by and "." in imp.of and layer_of(imp.of) not in allowed[layer_of(imp.by)]
    ]
    assert not forbidden


def test_the_package_itself_gives_its_version_and_calls_the_plugin():
    """Python runs the package's `__init__` before any of its modules: it is no layer. It imports the
    plugin when vLLM calls `register`, and no module imports anything from it."""
    assert {imp.of for imp in OWN if imp.by == PACKAGE} == {
        f"{PACKAGE}.plugin",
        f"{PACKAGE}.version",
    }
    assert not [imp for imp in OWN if imp.of == PACKAGE and "." in imp.by]


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.without], ids=lambda x: x.name)
def test_what_a_layer_never_imports(layer):
    heavy = [
        str(imp)
        for imp in EVERY
        if "." in imp.by
        and layer_of(imp.by) == layer.name
        and not imp.for_types
        and imp.of.split(".")[0] in layer.without
    ]
    assert not heavy


def test_no_import_cycle():
    edges = {name: set() for name in MODULES if name != PACKAGE}
    for imp in OWN:
        if imp.by in edges and imp.of in edges and imp.by != imp.of and not imp.for_types:
            edges[imp.by].add(imp.of)
    TopologicalSorter(edges).prepare()  # raises CycleError, with the modules
