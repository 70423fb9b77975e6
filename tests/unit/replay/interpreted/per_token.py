"""The scheme that replay stands in for: vLLM's own kernel, a state block per row of every request."""

from __future__ import annotations

import torch

from tests.unit.replay.cases import DEVICE, PADDING_ROWS, Case, Outcome, conv_states
from vllm_eagle_ext.replay.ops.types import Gating, Rows
from vllm_eagle_ext.replay.self_check.step import gpu_kernel


class PerToken:
    """States of R requests, T blocks each, and how many rows the last step accepted."""

    def __init__(self, states: torch.Tensor, T: int) -> None:
        """states: [R, HV, DV, DK] before the first step."""
        R = len(states)
        self.table = torch.arange(1, R * T + 1, dtype=torch.int32, device=DEVICE).view(R, T)
        self.states = torch.zeros(1 + R * T, *states.shape[1:], dtype=states.dtype, device=DEVICE)
        self.states[self.table[:, 0].long()] = states
        self.accepted = torch.ones(R, dtype=torch.int32, device=DEVICE)

    def step(self, rows: Rows, gating: Gating, starts: torch.Tensor) -> torch.Tensor:
        """Outputs [N, HV, DV]."""
        return gpu_kernel(rows, gating, self.states, self.table, self.accepted, starts)

    def accept(self, lengths: list[int]) -> torch.Tensor:
        """States [R, HV, DV, DK] after so many rows."""
        self.accepted = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        columns = (self.accepted.long() - 1)[:, None]
        return self.states[self.table.gather(1, columns)[:, 0].long()]


def per_token_outcome(case: Case, lengths: list[int]) -> Outcome:
    """The same step in the per-token scheme. Leaves the case as it is."""
    scheme = PerToken(case.cache.state[case.batch.state_blocks.long()], max(case.shape.T, PADDING_ROWS))
    scheme.table[case.batch.state_blocks == 0] = 0
    outputs = scheme.step(case.rows, case.gating, case.batch.starts)
    state = scheme.accept([max(length, 1) for length in lengths])
    return Outcome(outputs, state, conv_states(case, lengths))
