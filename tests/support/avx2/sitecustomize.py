"""Makes a process, and all that it starts, one of a CPU with AVX2 and nothing newer.

Put on PYTHONPATH by tools/isa.py. vLLM and this package ask torch which instruction set there is.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from types import MappingProxyType, ModuleType
from typing import Any

_NEWER = ("avx512", "amx", "avx10", "avx_vnni", "avx_ne_convert")


def _limit_torch(cpu: ModuleType) -> None:
    caps = cpu.get_capabilities()
    limited = {name: has and not name.startswith(_NEWER) for name, has in caps.items()}
    cpu.get_capabilities = lambda: MappingProxyType(limited | {"architecture": caps["architecture"]})


_LIMITED = {"torch.cpu": _limit_torch}


class _Limiting(importlib.abc.MetaPathFinder):
    """Finds a module through the other finders and limits it once it has executed."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if (limit := _LIMITED.pop(fullname, None)) is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                limit(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Limiting())
