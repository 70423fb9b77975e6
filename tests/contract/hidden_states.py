"""Which architectures of a release hand out hidden states, by reading its registry and its classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

INTERFACE = "SupportsEagle3"
_MODELS = "vllm.model_executor.models"
_TABLES = (
    "_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS",
    "_TRANSFORMERS_BACKEND_MODELS",
)  # fmt: skip
_DEPTH = 8  # of imports that lead from one module to the next


class Release:
    """Reads the classes of one release.

    Args:
        read: returns a module's source by its name, raises FileNotFoundError.
    """

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._tree = lru_cache(maxsize=None)(self._parse)
        self._names = lru_cache(maxsize=None)(self._index)
        self._has_interface: dict[tuple[str, str, int], bool] = {}

    def _parse(self, module: str) -> ast.Module | None:
        try:
            return ast.parse(self._read(module))
        except FileNotFoundError:
            return None

    def registered(self) -> dict[str, tuple[str, str]]:
        """Module and class by architecture, of all that generate text."""
        found: dict[str, tuple[str, str]] = {}
        for node in self._tree(f"{_MODELS}.registry").body:
            name = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(name, ast.Name) and name.id in _TABLES:
                found |= ast.literal_eval(node.value)
        return {
            architecture: (module if "." in module else f"{_MODELS}.{module}", cls)
            for architecture, (module, cls) in found.items()
        }

    def without_states(self) -> frozenset[str]:
        """Architectures whose class lacks the interface, on every platform that has one of its own."""
        return frozenset(
            architecture
            for architecture, (module, cls) in self.registered().items()
            if not any(self._hands_out(*found) for found in self._classes(module, cls))
        )

    def _hands_out(self, module: str, node: ast.ClassDef) -> bool:
        key = (module, node.name, node.lineno)
        if key not in self._has_interface:
            self._has_interface[key] = False  # a cycle of names ends here
            bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
            self._has_interface[key] = INTERFACE in bases or any(
                self._hands_out(*found) for base in bases for found in self._classes(module, base)
            )
        return self._has_interface[key]

    def _classes(self, module: str, name: str, depth: int = 0) -> Iterator[tuple[str, ast.ClassDef]]:
        """Find what a name may stand for: a class, another name for one, or one of each platform."""
        for found in self._names(module).get(name, ()) if depth < _DEPTH else ():
            if isinstance(found, ast.ClassDef):
                yield module, found
            else:
                yield from self._classes(*found, depth + 1)

    def _index(self, module: str) -> Mapping[str, set[ast.ClassDef | tuple[str, str]]]:
        """Classes by name, or module and name of where it comes from."""
        found: dict[str, set[ast.ClassDef | tuple[str, str]]] = defaultdict(set)
        tree = self._tree(module)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.ClassDef):
                found[node.name].add(node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                for target in node.targets:
                    found[ast.unparse(target)].add((module, node.value.id))
            elif isinstance(node, ast.ImportFrom) and (source := self._source(module, node)) != module:
                for alias in node.names:
                    found[alias.asname or alias.name].add((source, alias.name))
        return found

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """Name the module that an import reads; the folder of a package is its own."""
        if not node.level:
            return node.module
        for up in (node.level, node.level - 1):
            parts = module.split(".")
            source = ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])
            if source != module and self._tree(source) is not None:
                return source
        return module
