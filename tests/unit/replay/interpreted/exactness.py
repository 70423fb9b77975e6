"""Errors of the chunked kernels and of vLLM's own, both against fp64.

The interpreter forms products in fp32 and rounds their sums to nearest; `truncation` makes it sum as
tensor cores do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from tests.unit.replay.cases import PADDING_ROWS, Case, Shape, case, rows
from tests.unit.replay.interpreted.per_token import PerToken
from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops import triton_chunked as ops
from vllm_eagle_ext.replay.ops.types import Gating, Rows

FACTOR = 1.5  # of the error of vLLM's kernel
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


class Errors(NamedTuple):
    """Relative to the norm of the exact tensor, one of each head."""

    outputs: list[float]
    states: list[float]


class Compared(NamedTuple):
    """The scalars of a head (lengths of keys, decays, betas) are rounded once for all its elements:
    errors of single heads scatter, what is compared is their root mean square."""

    chunked: Errors
    per_token: Errors

    def ratio(self, part: str, dtype: torch.dtype) -> float:
        """To the error of vLLM's kernel, or to one rounding where that happens to be exact."""
        mine, theirs = (rms(getattr(errors, part)) for errors in self)
        return mine / max(theirs, ROUNDING[dtype])

    def check(self, shape: Shape) -> None:
        ratios = self.ratio("outputs", shape.model), self.ratio("states", shape.state)
        assert max(ratios) <= FACTOR, (ratios, [[rms(part) for part in errors] for errors in self])


def rms(values: list[float]) -> float:
    return (sum(value * value for value in values) / len(values)) ** 0.5


def joined(errors: Sequence[Compared]) -> Compared:
    return Compared(*(
        Errors(*(sum((list(getattr(c[side], part)) for c in errors), []) for part in Errors._fields))
        for side in (0, 1)
    ))  # fmt: skip


def relative(actual: torch.Tensor, exact: torch.Tensor) -> list[float]:
    """Of each head [HV, ..]. NaN counts as infinite."""
    apart = (actual.double() - exact).flatten(1).norm(dim=1)
    ratio = apart / exact.flatten(1).norm(dim=1).clamp(min=1e-30)
    return ratio.nan_to_num(nan=float("inf")).tolist()


class Exact:
    """fp64 states of the requests, which no block rounds."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states = [state.double() for state in states]  # [HV, DV, DK] each

    def step(self, step: Case, lengths: list[int]) -> list[torch.Tensor]:
        """Outputs per request [T, HV, DV]; afterwards the states are those after so many rows."""
        starts, outputs = step.batch.starts.tolist(), []
        for request, length in enumerate(lengths):
            state, outs = self.states[request], []
            for i in range(step.counts[request]):
                row = Rows(*(tensor[starts[request] + i] for tensor in step.rows))
                state = reference._reference_step(state, row, step.gating)
                query = reference._unit(row.query.double()) * row.query.shape[-1] ** -0.5
                query = query.repeat_interleave(state.shape[0] // len(query), 0)
                outs.append((state * query[:, None]).sum(-1))
                if i + 1 == length:
                    self.states[request] = state
            outputs.append(torch.stack(outs) if outs else torch.empty(0))
        return outputs


class Chain:
    """The same steps by the chunked kernels, by vLLM's and in fp64, each from states of its own."""

    def __init__(self, step: Case) -> None:
        blocks = step.batch.state_blocks.long()
        self.step = step
        self.exact = Exact(step.cache.state[blocks])
        self.scheme = PerToken(step.cache.state[blocks], max(step.shape.T, PADDING_ROWS))
        self.scheme.table[blocks == 0] = 0
        self.commit = ops.Commit([(step.cache, step.gating, 0)], step.shape.W - 1)

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
        errors = []
        for i in step.active:
            rows = slice(starts[i], starts[i + 1])
            state, block = self.exact.states[i], int(step.batch.state_blocks[i])
            pairs = ((out[rows], step.cache.state[block]), (theirs[rows], their_states[i]))
            errors.append(Compared(*(
                Errors(relative(o.transpose(0, 1), exact[i].transpose(0, 1)), relative(s, state))
                for o, s in pairs
            )))  # fmt: skip
        return joined(errors)


def compare(
    shape: Shape,
    counts: list[int],
    lengths: list[int],
    seeds: int = 1,
    change: Callable[[Case], None] = lambda step: None,
) -> Compared:
    """One step, of which so many rows are committed; several times, with other numbers."""
    runs = []
    for seed in range(seeds):
        step = case(shape, counts, seed)
        change(step)
        runs.append(Chain(step).run(lengths))
    return joined(runs)


def compare_chain(
    shape: Shape, requests: int, steps: int, gating: Gating | None = None, last: int = 8
) -> tuple[Compared, set[int]]:
    """Errors of the last steps, and the accept lengths that came up."""
    pick = random.Random(shape.T)
    step = case(shape, [shape.T] * requests)
    if gating is not None:
        step.gating = gating
    chain, seen, runs = Chain(step), set(), []
    for number in range(steps):
        step.counts = [pick.randint(1, shape.T) for _ in range(requests)]
        lengths = [pick.randint(1, count) for count in step.counts]
        starts = torch.tensor([0, *step.counts]).cumsum(0).to(torch.int32).to(step.whole.device)
        step.rows, step.batch = rows(shape, sum(step.counts), number), step.batch._replace(starts=starts)
        runs.append(chain.run(lengths))
        seen |= set(lengths)
    return joined(runs[-last:]), seen
