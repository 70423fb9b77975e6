# SPDX-License-Identifier: Apache-2.0
"""vLLM's own kernels on a made-up step: its per-token scheme, which stores the state after every row."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from vllm_eagle_ext.replay.ops.types import Gating, Rows
from vllm_eagle_ext.replay.self_check.step import MadeStep


class PerTokenKernel(Protocol):
    """Runs R requests from the state in `table`'s column `accepted` - 1, and stores the state after
    row t into column t."""

    def __call__(
        self,
        rows: Rows,
        gating: Gating,
        states: torch.Tensor,  # [P, HV, DV, DK]
        table: torch.Tensor,  # [R, T] int32: blocks
        accepted: torch.Tensor,  # [R] int32
        starts: torch.Tensor,  # [R + 1] int32
    ) -> torch.Tensor: ...  # outputs [N, HV, DV]


class PerToken(NamedTuple):
    """What vLLM's kernel made of a step."""

    outputs: torch.Tensor  # [N, HV, DV]
    states: torch.Tensor  # [1 + N, HV, DV, DK]: the state after row n in block 1 + n

    def after(self, step: MadeStep, request: int, rows: int) -> torch.Tensor:
        """Return a request's state [HV, DV, DK] after so many of its rows."""
        return self.states[sum(step.lengths[:request]) + rows]


def run_per_token(step: MadeStep, kernel: PerTokenKernel) -> PerToken:
    """Run vLLM's kernel on the step's rows; the step stays as it is."""
    count = step.num_rows
    table, first = _block_table(step)
    states = step.cache.state.new_zeros(1 + count, *step.cache.state.shape[1:])
    states[table[:, 0].long()] = step.cache.state[step.batch.state_blocks[: len(table)].long()]
    rows, starts = Rows(*(part[:count] for part in step.rows)), step.batch.starts[: len(table) + 1]
    return PerToken(kernel(rows, step.gating, states, table, first, starts), states)


def _block_table(step: MadeStep) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a block for each row, [R, T] int32 with 0 after a request's last row, and [R] ones."""
    device, lengths = step.whole.device, step.lengths
    table = torch.zeros(len(lengths), max(lengths), dtype=torch.int32, device="cpu")
    start = 1
    for i, length in enumerate(lengths):
        table[i, :length] = torch.arange(start, start + length, dtype=torch.int32, device="cpu")
        start += length
    return table.to(device), torch.ones(len(lengths), dtype=torch.int32, device=device)


def gpu_kernel(
    rows: Rows,
    gating: Gating,
    states: torch.Tensor,
    table: torch.Tensor,
    accepted: torch.Tensor,
    starts: torch.Tensor,
) -> torch.Tensor:
    """Run the Triton kernel."""
    from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import (
        fused_sigmoid_gating_delta_rule_update,
    )

    out, _ = fused_sigmoid_gating_delta_rule_update(
        A_log=gating.A_log,
        a=rows.a,
        b=rows.b,
        dt_bias=gating.dt_bias,
        q=rows.query[None],
        k=rows.key[None],
        v=rows.value[None],
        initial_state=states,
        inplace_final_state=True,
        cu_seqlens=starts,
        ssm_state_indices=table,
        num_accepted_tokens=accepted,
        use_qk_l2norm_in_kernel=True,
    )
    found: torch.Tensor = out[0]
    return found


def cpu_kernel(
    rows: Rows,
    gating: Gating,
    states: torch.Tensor,
    table: torch.Tensor,
    accepted: torch.Tensor,
    starts: torch.Tensor,
) -> torch.Tensor:
    """Run the C++ operator."""
    from vllm import _custom_ops as ops

    blocks, heads, value_dim, key_dim = states.shape
    found: torch.Tensor = ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        A_log=gating.A_log,
        dt_bias=gating.dt_bias,
        q=rows.query,
        k=rows.key,
        v=rows.value,
        a=rows.a.contiguous(),
        b=rows.b.contiguous(),
        initial_state_source=states.view(blocks, heads, key_dim, value_dim),
        spec_state_indices=table,
        num_accepted_tokens=accepted,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=True,
    )
    return found
