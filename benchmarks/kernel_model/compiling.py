# SPDX-License-Identifier: Apache-2.0
"""Compiles Triton kernels for a GPU that is not there, as they would be launched.

The functions that launch them run on CPU tensors, with `record` in place of the launch: signature,
constants and what is known of alignment are then Triton's own reading of the real arguments. It needs a
process with a Triton that compiles: no TRITON_INTERPRET, and a driver (tests/support/triton_cpu).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

BIN = Path(nvidia.__file__).parent / "bin"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # today's default, without its warning


@dataclass(frozen=True)
class Launch:
    """A kernel with the arguments of one launch."""

    kernel: Any  # a JITFunction
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def ctas(self) -> int:
        return prod(self.grid)


@contextmanager
def record() -> Iterator[list[Launch]]:
    """Notes launches instead of making them."""
    found: list[Launch] = []
    launch = JITFunction.run

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        if callable(grid):
            grid = grid(dict(zip(self.arg_names, args, strict=False)) | keywords)
        found.append(Launch(self, tuple(grid), args, keywords))

    JITFunction.run = note
    try:
        yield found
    finally:
        JITFunction.run = launch


def compile_launch(launch: Launch, capability: int, **changed: Any) -> Any:
    """Triton's compiled kernel: `asm` by stage, and `metadata`. changed: other constants."""
    target = GPUTarget("cuda", capability, 32)
    backend, kernel = make_backend(target), launch.kernel
    keywords = {"debug": False, **launch.keywords, **changed}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialised, options = bind(*launch.args, **keywords)
    options, signature, constants, attributes = kernel._pack_args(
        backend, keywords, bound, specialised, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=options.__dict__)


@dataclass(frozen=True)
class Machine:
    """Machine code of one kernel and what it takes of a multiprocessor."""

    text: str  # disassembled
    registers: int  # per thread
    local: int  # bytes per thread in local memory: stack and spills
    shared: int  # bytes per CTA, without the reserved ones
    warps: int  # per CTA


def machine_code(compiled: Any) -> Machine:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = tool("nvdisasm", "-c", file.name)
        usage = tool("cuobjdump", "-res-usage", file.name)
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    metadata = compiled.metadata
    return Machine(
        text=text,
        registers=found["REG"],
        local=found["STACK"] + found["LOCAL"],
        shared=int(metadata.shared),
        warps=int(metadata.num_warps),
    )


def tool(name: str, *arguments: str) -> str:
    """What a program of the CUDA toolkit prints that Triton brings along."""
    command = [str(BIN / name), *arguments]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout
