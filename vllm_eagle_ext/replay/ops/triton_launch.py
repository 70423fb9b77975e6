# SPDX-License-Identifier: Apache-2.0
"""What the launches of the sequential and of the chunked kernels share."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops.types import Batch, Gating, Rows, StateCache


def layer_sizes(cache: StateCache) -> dict[str, int]:
    """Return heads and widths of a layer, by the kernels' names."""
    _, HV, DV, DK = cache.state.shape
    H = (cache.records.shape[2] - HV * (DV + 2)) // DK
    if record_width(H, DK, HV, DV) != cache.records.shape[2]:
        raise ValueError(f"records {cache.records.shape} do not fit states {cache.state.shape}")
    if not (cache.state[:1].is_contiguous() and cache.records[:1].is_contiguous()):
        raise ValueError("a block's state and its records must be contiguous in themselves")
    return {"H": H, "HV": HV, "DK": DK, "DV": DV}


def programs(batch: Batch, sizes: dict[str, int]) -> int:
    """Count the programs of one layer. The rows have no part in it, so that a graph may hold the
    launch."""
    return batch.state_blocks.shape[-1] * sizes["HV"] * triton.cdiv(sizes["DV"], sizes["BV"])


def launch_verify(
    kernel: Any,
    rows: Rows,
    gating: Gating,
    cache: StateCache,
    batch: Batch,
    out: torch.Tensor,
    **constants: int,
) -> None:
    """Launch a kernel with `_verify`'s arguments.

    Args:
        constants: sizes of a layer and of a program's tile, and of the launch.

    Raises:
        ValueError: rows that would be rounded when recorded, or whose parts a kernel would not find.
    """
    for tensor in (*rows, out):
        if tensor.dtype != cache.records.dtype or not tensor[:1].is_contiguous():
            raise ValueError(f"rows must be {cache.records.dtype}, as records, and contiguous each")
    count = programs(batch, constants)
    if not count:
        return
    kernel[(count,)](
        *rows,
        *gating,
        cache.state,
        cache.records,
        batch.state_blocks,
        batch.starts,
        out,
        constants["DK"] ** -0.5,
        *(tensor.stride(0) for tensor in (*rows, out, batch.state_blocks)),
        STATE_STRIDE=cache.state.stride(0),
        RECORD_STRIDE=cache.records.stride(0),
        RECORD_ROWS=cache.records.shape[1],
        **constants,
    )
