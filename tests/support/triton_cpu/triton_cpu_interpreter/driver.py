from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


def hasten() -> None:
    """Take out of the interpreter what no kernel needs: it replaces members of its language anew at each
    call, and tests each sum of integers for an overflow that it does not report."""
    from triton.runtime import interpreter

    builder, patch, patched = interpreter.interpreter_builder, interpreter._patch_lang, set[int]()
    builder.options = replace(builder.options, sanitize_overflow=False)

    def patch_once(function: Callable[..., Any]) -> Any:
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch(function)
        return interpreter._LangPatchScope()  # nothing to restore

    interpreter._patch_lang = patch_once


class InterpreterDriver(DriverBase):
    def __init__(self) -> None:
        super().__init__()
        hasten()

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise RuntimeError("the cpu backend only interprets: set TRITON_INTERPRET=1")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self):
        raise RuntimeError("the cpu backend only interprets: nothing to benchmark")

    def get_device_interface(self):
        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device=None) -> int:
        return 0
