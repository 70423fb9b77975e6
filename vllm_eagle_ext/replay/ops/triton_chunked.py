# SPDX-License-Identifier: Apache-2.0
"""Verify and commit on tensor cores, all rows of a step at once. Needs only torch and triton.

Same recorded inputs as `ops.triton`: either may commit what the other verified. Outputs and states are
not those of vLLM's kernel to the last bit, but as near to the exact ones.

Memory bounds these kernels, not arithmetic, as soon as a step has a few requests: a state is read once
by a verify, once from memory by a commit (a second time from the second-level cache) and written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton  # type: ignore[import-untyped]

from vllm_eagle_ext.replay.ops import triton as sequential
from vllm_eagle_ext.replay.ops.triton import launch_verify, layer_sizes, programs
from vllm_eagle_ext.replay.ops.triton_chunked_kernels import _apply_states, _verify
from vllm_eagle_ext.replay.ops.triton_plan import plan, strides
from vllm_eagle_ext.replay.ops.types import Batch, CommitPlan, Gating, Rows, StateCache

__all__ = ["Commit", "plan", "verify"]

LEAST_WIDTH = 16  # rows and columns of a tensor core's product
MOST_ROWS = 64
DTYPES = (torch.bfloat16, torch.float16)  # of rows; sums of three bf16 parts hold either exactly
COLUMNS_AT_A_TIME = 32
FEW_HEADS = 128  # value heads of a launch, below which a head is shared among more programs
VERIFY = {"num_warps": 4, "STAGES": 3}
COMMIT = {"num_warps": 4, "STAGES": 3}


def unsupported_reason(
    key_width: int, value_width: int, rows: int, dtype: torch.dtype, state_dtype: torch.dtype
) -> str | None:
    """Say why these kernels cannot run a layer; None: they can.

    Args:
        rows: of a request in a step, 1 + K at most.
        dtype: of rows.
    """
    if key_width % LEAST_WIDTH or value_width % LEAST_WIDTH:
        return f"heads are {key_width} and {value_width} wide, allowed are multiples of {LEAST_WIDTH}"
    if rows > MOST_ROWS:
        return f"a step has up to {rows} rows of a request, allowed are {MOST_ROWS}"
    if dtype not in DTYPES:
        return f"rows are {dtype}, allowed are bfloat16 and float16"
    if state_dtype not in (torch.float32, *DTYPES):
        return f"states are {state_dtype}, allowed are float32, bfloat16 and float16"
    return None


def _sizes_for(cache: StateCache, requests: int, layers: int = 1) -> dict[str, int]:
    """Return the sizes of a layer and of a program's tile, by the kernels' names. A launch's tile
    depends only on its layers and the padded number of requests, so that a graph may hold it."""
    sizes = layer_sizes(cache)
    rows, DK, DV = cache.records.shape[1], sizes["DK"], sizes["DV"]
    reason = unsupported_reason(DK, DV, rows, cache.records.dtype, cache.state.dtype)
    if reason:
        raise ValueError(reason)
    BV = 128 if layers * requests * sizes["HV"] >= FEW_HEADS else 32
    return {
        **sizes,
        "ROWS": max(triton.next_power_of_2(rows), LEAST_WIDTH),
        "BD": min(triton.next_power_of_2(DK), COLUMNS_AT_A_TIME),
        "BV": min(triton.next_power_of_2(DV), BV),
    }


def verify(rows: Rows, gating: Gating, cache: StateCache, batch: Batch, out: torch.Tensor) -> None:
    """Write the outputs of all rows from the committed states to `out` [N, HV, DV]; record the rows.

    Heads and widths of `rows` and `out` are contiguous, and so are a block's state and records; rows and
    blocks may be any distance apart. Rows of padding are not touched, nor a request's rows after
    the 16, 32 or 64 that hold all that can be recorded: only the capture of a graph has such.

    Raises:
        ValueError: shapes or dtypes that these kernels cannot run.
    """
    sizes = _sizes_for(cache, len(batch.state_blocks))
    launch_verify(_verify, rows, gating, cache, batch, out, **sizes, **VERIFY)


class Commit(sequential.Commit):
    """Writes what a plan says, in all layers at once: one launch for states, one for conv states."""

    def __init__(self, layers: Sequence[tuple[StateCache, Gating, int]], history: int) -> None:
        """Keep the layers, each as `types.Layer`; `history`: W - 1, the inputs that the convolution
        looks back on.

        Raises:
            ValueError: the layers differ, or have shapes or dtypes that these kernels cannot run.
        """
        super().__init__(layers, history)
        _sizes_for(self._layers[0].cache, requests=1)
        self._record_bytes = math.gcd(*(self._alignment(layer.cache.records) for layer in self._layers))

    def _launch(self, batch: Batch, plan: CommitPlan) -> None:
        first, gating, _ = self._layers[0]
        sizes = _sizes_for(first, batch.state_blocks.shape[-1], len(self._layers))
        _apply_states[(programs(batch, sizes), len(self._layers))](
            self._table,
            first.state,
            first.records,
            *gating,
            batch.state_blocks,
            *plan,
            *strides(batch, plan),
            RECORD_ROWS=first.records.shape[1],
            STATE_BYTES=self._state_bytes,
            RECORD_BYTES=self._record_bytes,
            **sizes,
            **COMMIT,
        )
