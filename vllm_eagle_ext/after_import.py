# SPDX-License-Identifier: Apache-2.0
"""Runs something on a module right after its first import, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)


def when_loaded(name: str, action: Callable[..., None], *args: Any) -> None:
    """Run `action(module, *args)` now if the module is loaded, else right after its first import.

    Asked for twice, an action runs once.
    """
    waiting = [(f.name, f.action, f.args) for f in sys.meta_path if isinstance(f, _AfterImport)]
    if name in sys.modules:
        action(sys.modules[name], *args)
    elif (name, action, args) not in waiting:
        sys.meta_path.insert(0, _AfterImport(name, action, args))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders and runs an action once it has executed.

    It stays in place until then: a module may be looked up without being imported, or fail at first.
    """

    def __init__(self, name: str, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.name = name
        self.action = action
        self.args = args
        self.searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                self.action(module, *self.args)
            except Exception:  # noqa: BLE001 - the import of vLLM's own module must not fail for us
                logger.exception(
                    "vllm-eagle-ext could not hook into %s; vLLM runs without it.", self.name
                )

        loader.exec_module = exec_module
