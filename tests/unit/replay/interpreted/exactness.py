"""Errors of the chunked kernels and of vLLM's own, both against fp64.

The interpreter forms products in fp32, as the kernels' sums are: how a tensor core rounds inside a product
of 16 terms is not part of what is measured here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.unit.replay.cases import PADDING, PADDING_ROWS, Case, Shape, case, rows
from tests.unit.replay.interpreted.per_token import PerToken
from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops import triton_chunked as ops
from vllm_eagle_ext.replay.ops.types import Gating, Rows

FACTOR = 1.5  # of the error of vLLM's kernel
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


class Errors(NamedTuple):
    """Relative to the norm of the exact tensor; of a state per head."""

    outputs: float
    states: float

    def largest(self, other: Errors) -> Errors:
        return Errors(max(self.outputs, other.outputs), max(self.states, other.states))


class Compared(NamedTuple):
    chunked: Errors
    per_token: Errors

    def largest(self, other: Compared) -> Compared:
        return Compared(*(a.largest(b) for a, b in zip(self, other, strict=True)))

    def check(self, shape: Shape) -> None:
        """One rounding of the stored type is allowed where vLLM's kernel happens to be exact."""
        limits = (
            max(self.per_token.outputs, ROUNDING[shape.model]),
            max(self.per_token.states, ROUNDING[shape.state]),
        )
        assert self.chunked.outputs <= FACTOR * limits[0], self
        assert self.chunked.states <= FACTOR * limits[1], self


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest over the heads [HV, ..]. NaN counts as infinite."""
    apart = (found.double() - exact).flatten(1).norm(dim=1)
    ratio = apart / exact.flatten(1).norm(dim=1).clamp(min=1e-30)
    return float(ratio.nan_to_num(nan=float("inf")).max())


class Exact:
    """fp64 states of the requests, which no block rounds."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states = [state.double() for state in states]  # [HV, DV, DK] each

    def step(self, step: Case, lengths: list[int]) -> list[torch.Tensor]:
        """Outputs per request [T, HV, DV]; afterwards the states are those after so many rows."""
        starts, outputs = step.batch.starts.tolist(), []
        for request, length in enumerate(lengths):
            state, found = self.states[request], []
            for i in range(step.counts[request]):
                row = Rows(*(tensor[starts[request] + i] for tensor in step.rows))
                state = reference._reference_step(state, row, step.gating)
                query = reference._unit(row.query.double()) * row.query.shape[-1] ** -0.5
                query = query.repeat_interleave(state.shape[0] // len(query), 0)
                found.append((state * query[:, None]).sum(-1))
                if i + 1 == length:
                    self.states[request] = state
            outputs.append(torch.stack(found) if found else torch.empty(0))
        return outputs


class Chain:
    """The same steps by the chunked kernels, by vLLM's and in fp64, each from states of its own."""

    def __init__(self, step: Case) -> None:
        blocks = step.batch.state_blocks.long()
        self.step = step
        self.exact = Exact(step.cache.state[blocks])
        self.scheme = PerToken(step.cache.state[blocks], max(step.shape.T, PADDING_ROWS))
        self.scheme.table[blocks == 0] = 0
        self.commit = ops.ApplyPlan([(step.cache, step.gating, 0)], step.shape.W - 1)

    def run(self, lengths: list[int]) -> Compared:
        step = self.step
        out, plan = step.out(), step.plan()
        step.cache.records.fill_(float("nan"))
        ops.verify(step.rows, step.gating, step.cache, step.batch, out)
        ops.plan(step.batch, step.sampled(lengths), None, None, plan)
        for block, length in zip(step.batch.state_blocks.tolist(), lengths, strict=True):
            step.cache.records[block, length:] = float("nan")
        self.commit(step.batch, plan)
        theirs = self.scheme.step(step.rows, step.gating, step.batch.starts)
        their_states = self.scheme.accept([max(length, 1) for length in lengths])
        exact, starts = self.exact.step(step, lengths), step.batch.starts.tolist()
        found = []
        for i in step.active:
            rows = slice(starts[i], starts[i + 1])
            state, block = self.exact.states[i], int(step.batch.state_blocks[i])
            pairs = ((out[rows], step.cache.state[block]), (theirs[rows], their_states[i]))
            found.append(Compared(*(
                Errors(relative(o.transpose(0, 1), exact[i].transpose(0, 1)), relative(s, state))
                for o, s in pairs
            )))  # fmt: skip
        result = found[0]
        for other in found[1:]:
            result = result.largest(other)
        return result


def compare(
    shape: Shape,
    counts: list[int],
    lengths: list[int],
    seed: int = 0,
    change: Callable[[Case], None] = lambda step: None,
) -> Compared:
    """One step, of which so many rows are committed."""
    step = case(shape, counts, seed)
    change(step)
    return Chain(step).run(lengths)


def compare_chain(
    shape: Shape, requests: int, steps: int, gating: Gating | None = None
) -> tuple[Compared, set[int]]:
    """Of all steps the largest error of outputs, of the last eight the largest of states; the accept
    lengths that came up."""
    pick = random.Random(shape.T)
    step = case(shape, [shape.T] * requests)
    if gating is not None:
        step.gating = gating
    chain, seen, found = Chain(step), set(), []
    for number in range(steps):
        step.counts = [pick.randint(1, shape.T) for _ in range(requests)]
        lengths = [pick.randint(1, count) for count in step.counts]
        starts = torch.tensor([0, *step.counts]).cumsum(0).to(torch.int32).to(step.whole.device)
        step.rows, step.batch = rows(shape, sum(step.counts), number), step.batch._replace(starts=starts)
        found.append(chain.run(lengths))
        seen |= set(lengths)
    result = found[-1]
    for other in found[-8:]:
        result = result.largest(other)
    return result, seen
