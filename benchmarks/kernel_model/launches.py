# SPDX-License-Identifier: Apache-2.0
"""The launches of one layer, as this package and vLLM make them."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from typing import Any

import torch
from vllm.third_party.flash_linear_attention.ops import fused_sigmoid_gating

from benchmarks.kernel_model.case import CONVOLUTION, WIDTH, Case
from benchmarks.kernel_model.compiling import Launch, record
from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops.triton_blocks import gather_blocks
from vllm_eagle_ext.replay.ops.types import (
    Align,
    Batch,
    BlockPlaces,
    CommitPlan,
    Gating,
    Rows,
    StateCache,
)

BLOCK_TOKENS = 1024  # of a state block with prefix caching
LAYERS = 30  # of a commit; no target has fewer, and more make no difference to its tiles
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Scheme -> module with `verify`, `plan` and `Commit`. One that is not there is left out.
REPLAY = {
    "sequential": "vllm_eagle_ext.replay.ops.triton",
    "chunked": "vllm_eagle_ext.replay.ops.triton_chunked",
}


class _Tensors:
    """Tensors of one layer; their values are never looked at, and all requests share a state block."""

    def __init__(self, case: Case, requests: int) -> None:
        T, H, HV = case.rows, case.key_heads, case.value_heads
        N = requests * T
        shapes = ((N, H, WIDTH), (N, H, WIDTH), (N, HV, WIDTH), (N, HV), (N, HV))
        self.rows = Rows(*(torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes))
        self.gating = Gating(torch.zeros(HV), torch.zeros(HV, dtype=torch.bfloat16))
        self.out = torch.zeros(N, HV, WIDTH, dtype=torch.bfloat16)
        self.starts = torch.arange(0, N + 1, T, dtype=torch.int32)
        self._requests = requests
        dtype = DTYPES[case.state]
        conv = (case.channels, CONVOLUTION - 1 + T - 1)
        record = (T, record_width(H, WIDTH, HV, WIDTH))
        # As in a state block of vLLM's cache: state, conv state and records, one block after the other.
        block = case.state_bytes + T * case.record_bytes + 2 * conv[0] * conv[1]
        block += -block % 4096
        self.cache = StateCache(
            torch.zeros(2 * block, dtype=torch.uint8).view(torch.bfloat16).as_strided(
                (2, *conv), (block // 2, 1, conv[0])
            ),
            torch.zeros(2 * block, dtype=torch.uint8).view(dtype).as_strided(
                (2, HV, WIDTH, WIDTH), (block // dtype.itemsize, WIDTH * WIDTH, WIDTH, 1)
            ),
            torch.zeros(2 * block, dtype=torch.uint8).view(torch.bfloat16).as_strided(
                (2, *record), (block // 2, record[1], 1)
            ),
        )  # fmt: skip

    def counts(self) -> torch.Tensor:
        return torch.ones(self._requests, dtype=torch.int32)


def replay(scheme: str, case: Case, requests: int) -> list[Launch]:
    """Every launch of a step: its state blocks, verify, plan, commit; with prefix caching."""
    module: Any = importlib.import_module(REPLAY[scheme])
    made = _Tensors(case, requests)
    batch = Batch(made.counts(), made.starts)
    plan = CommitPlan(*(made.counts() for _ in range(4)))
    align = Align.of([torch.ones(requests, 8, dtype=torch.int32)], made.counts(), BLOCK_TOKENS)
    places = BlockPlaces(requests, None, made.counts(), BLOCK_TOKENS)
    with record() as found:
        gather_blocks(align.tables, places, torch.ones(1, 1, requests, dtype=torch.int32))
        module.verify(made.rows, made.gating, made.cache, batch, made.out)
        module.plan(batch, made.counts(), None, align, plan)
    with record() as commit:
        module.Commit([(made.cache, made.gating, 0)] * LAYERS, CONVOLUTION - 1)(batch, plan)
    return found + [_of_one_layer(launch) for launch in commit]


def _of_one_layer(launch: Launch) -> Launch:
    *grid, layers = launch.grid
    assert layers == LAYERS, (launch.name, launch.grid)
    return replace(launch, grid=tuple(grid))


def per_token(case: Case, requests: int) -> list[Launch]:
    """vLLM's kernel for any K: a state block per row."""
    made = _Tensors(case, requests)
    blocks = torch.ones(requests, case.rows, dtype=torch.int32)
    with record() as found:
        fused_sigmoid_gating.fused_sigmoid_gating_delta_rule_update(
            A_log=made.gating.A_log, dt_bias=made.gating.dt_bias,
            q=made.rows.query[None], k=made.rows.key[None], v=made.rows.value[None],
            a=made.rows.a, b=made.rows.b, initial_state=made.cache.state, inplace_final_state=True,
            cu_seqlens=made.starts, ssm_state_indices=blocks,
            num_accepted_tokens=made.counts(), use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
    return found


def schemes() -> list[str]:
    """The replaying schemes that this checkout has."""
    return [name for name, module in REPLAY.items() if importlib.util.find_spec(module)]


def launches(scheme: str, case: Case, requests: int = 1) -> list[Launch]:
    """The launches of one layer by a scheme: `per_token`, or one of `schemes()`."""
    if scheme == "per_token":
        return per_token(case, requests)
    return replay(scheme, case, requests)
