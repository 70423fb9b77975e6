"""These tests call Triton kernels: on a GPU as they are, else in a process with the interpreter
(`tests/unit/replay/test_triton_ops.py` starts it), because a process has it or has it not.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.engine import has_gpu

RUNS_TRITON = has_gpu() or os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if RUNS_TRITON else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def patched_once():
    """Triton's interpreter replaces the members of its language anew at every call of a device function,
    although the kernel around it has done so: half the time of a kernel with many small functions."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    seen: dict[int, list[Any]] = {}

    def once(fn: Callable[..., Any]) -> Any:
        names = fn.__globals__
        if id(names) not in seen:
            seen[id(names)] = [m for m in names.values() if inspect.ismodule(m) and m in (tl, tl.core)]
        if all(module.load.__name__ == "<lambda>" for module in seen[id(names)]):
            return interpreter._LangPatchScope()  # nothing to restore: the kernel's own call does
        return patch(fn)

    interpreter._patch_lang = once
    yield
    interpreter._patch_lang = patch
