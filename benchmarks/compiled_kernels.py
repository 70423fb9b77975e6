# SPDX-License-Identifier: Apache-2.0
"""Compiles the Triton kernels of replay and vLLM's own for a GPU that is not there, as they would be
launched. tests/unit/replay/compiled.py compares how they round.

The functions that launch them run on CPU tensors, with `record` in place of the launch: signature,
constants and what is known of alignment are then Triton's own reading of the real arguments. It needs a
process with a Triton that compiles: no TRITON_INTERPRET, and a driver (tests/support/triton_cpu).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend  # noqa: A004 - Triton's name
from triton.runtime.jit import JITFunction, create_function_from_signature
from vllm.third_party.flash_linear_attention.ops import fused_sigmoid_gating

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops import triton as sequential
from vllm_eagle_ext.replay.ops.types import Align, Batch, CommitPlan, Gating, Rows, StateCache

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # today's default, without its warning
WIDTH, CONVOLUTION = 128, 4
BLOCK_TOKENS = 1024  # of a state block with prefix caching
LAYERS = 30  # of a commit; no target has fewer, and more make no difference to its tiles
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Launch:
    """A kernel with the arguments of one launch."""

    kernel: Any  # a JITFunction
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@contextmanager
def record() -> Iterator[list[Launch]]:
    """Note launches instead of making them."""
    launches: list[Launch] = []
    launch = JITFunction.run

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        launches.append(Launch(self, args, keywords))

    JITFunction.run = note
    try:
        yield launches
    finally:
        JITFunction.run = launch


def compile_launch(launch: Launch, capability: int, **changed: Any) -> Any:
    """Return Triton's compiled kernel, with `asm` by stage.

    Args:
        changed: constants in place of the launch's.
    """
    target = GPUTarget("cuda", capability, 32)
    backend, kernel = make_backend(target), launch.kernel
    keywords = {"debug": False, **launch.keywords, **changed}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialised, options = bind(*launch.args, **keywords)
    options, signature, constants, attributes = kernel._pack_args(
        backend, keywords, bound, specialised, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    return compile(source, target=target, options=options.__dict__)


class Layer:
    """One request's step of a gated delta net; the values of its tensors are never looked at."""

    def __init__(self, *, key_heads: int, value_heads: int, state: str, rows: int) -> None:
        T, H, HV = rows, key_heads, value_heads
        shapes = ((T, H, WIDTH), (T, H, WIDTH), (T, HV, WIDTH), (T, HV), (T, HV))
        self.rows = Rows(*(torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes))
        self.gating = Gating(torch.zeros(HV), torch.zeros(HV, dtype=torch.bfloat16))
        self.out = torch.zeros(T, HV, WIDTH, dtype=torch.bfloat16)
        self.starts = torch.tensor([0, T], dtype=torch.int32)
        self.ones = torch.ones(1, dtype=torch.int32)
        # As in a state block of vLLM's cache: state, conv state and records, one block after the other.
        dtype, channels, record = DTYPES[state], (2 * H + HV) * WIDTH, record_width(H, WIDTH, HV, WIDTH)
        columns = CONVOLUTION - 1 + T - 1
        block = HV * WIDTH * WIDTH * dtype.itemsize + 2 * T * record + 2 * columns * channels
        block += -block % 4096

        def part(dtype: torch.dtype, size: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
            whole = torch.zeros(2 * block, dtype=torch.uint8).view(dtype)
            return whole.as_strided((2, *size), (block // dtype.itemsize, *strides))

        self.cache = StateCache(
            part(torch.bfloat16, (channels, columns), (1, channels)),
            part(dtype, (HV, WIDTH, WIDTH), (WIDTH * WIDTH, WIDTH, 1)),
            part(torch.bfloat16, (T, record), (record, 1)),
        )

    def replay(self) -> list[Launch]:
        """Record verify, plan and commit of the sequential kernels, with prefix caching."""
        batch = Batch(self.ones, self.starts)
        plan = CommitPlan(*(self.ones.clone() for _ in range(4)))
        align = Align.of([torch.ones(1, 8, dtype=torch.int32)], self.ones.clone(), BLOCK_TOKENS)
        with record() as launches:
            sequential.verify(self.rows, self.gating, self.cache, batch, self.out)
            sequential.plan(batch, self.ones.clone(), None, align, plan)
            commit = sequential.Commit([(self.cache, self.gating, 0)] * LAYERS, CONVOLUTION - 1)
            commit(batch, plan)
        return launches

    def per_token(self) -> list[Launch]:
        """Record vLLM's kernel for any K: a state block per row."""
        blocks = torch.ones(1, len(self.out), dtype=torch.int32)
        with record() as launches:
            fused_sigmoid_gating.fused_sigmoid_gating_delta_rule_update(
                A_log=self.gating.A_log, dt_bias=self.gating.dt_bias,
                q=self.rows.query[None], k=self.rows.key[None], v=self.rows.value[None],
                a=self.rows.a, b=self.rows.b, initial_state=self.cache.state, inplace_final_state=True,
                cu_seqlens=self.starts, ssm_state_indices=blocks,
                num_accepted_tokens=self.ones.clone(), use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
        return launches
