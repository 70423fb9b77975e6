"""Random steps for the operation: requests of uneven length, padding, state blocks of any stride."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple

import torch

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, Batch, CommitPlan, Gating, Rows, StateCache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING = -1  # as a request's number of rows: a request that stands on the null block, with two rows
PADDING_ROWS = 2


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer, letters as in `ops.types`."""

    T: int = 4
    H: int = 1
    HV: int = 2
    DK: int = 16
    DV: int = 16
    W: int = 4
    model: torch.dtype = torch.bfloat16
    state: torch.dtype = torch.float32
    gap: int = 48  # bytes between one block and the next

    @property
    def channels(self) -> int:
        return 2 * self.H * self.DK + self.HV * self.DV


class Outcome(NamedTuple):
    """What a step left behind."""

    outputs: torch.Tensor  # [N, HV, DV]
    state: torch.Tensor  # [R, HV, DV, DK] after the accepted rows
    conv: torch.Tensor  # [R, channels, W - 1]


@dataclass
class Case:
    """One step of one layer. StateCache 0 and those behind the requests' belong to nobody."""

    shape: Shape
    rows: Rows
    gating: Gating
    cache: StateCache
    batch: Batch
    counts: list[int]  # rows per request, PADDING
    whole: torch.Tensor = field(repr=False)  # [P, bytes of a block and gap], what `cache` has views of

    @property
    def active(self) -> list[int]:
        return [i for i, count in enumerate(self.counts) if count > 0]

    def out(self) -> torch.Tensor:
        return torch.full_like(self.rows.value, float("nan"))

    def plan(self) -> CommitPlan:
        """Filled with values that may not survive."""
        return CommitPlan(*torch.full((4, len(self.counts)), 1 << 20, dtype=torch.int32, device=DEVICE))

    def sampled(self, lengths: list[int]) -> torch.Tensor:
        return torch.tensor(lengths, dtype=torch.int32, device=DEVICE)


def noise(seed: int, *size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator) * scale).to(dtype).to(DEVICE)


def rows(shape: Shape, count: int, seed: int) -> Rows:
    """Views of one packed tensor each for query, key and value, and for a and b."""
    H, HV, DK, DV = shape.H, shape.HV, shape.DK, shape.DV
    packed = noise(seed, count, shape.channels, dtype=shape.model)
    query, key, value = packed.split([H * DK, H * DK, HV * DV], dim=1)
    b, a = noise(seed + 1, count, 2 * HV, dtype=shape.model, scale=2.0).chunk(2, dim=1)
    return Rows(query.view(count, H, DK), key.view(count, H, DK), value.view(count, HV, DV), a, b)


def gating(shape: Shape, seed: int) -> Gating:
    bias = noise(seed + 1, shape.HV, dtype=shape.model)
    return Gating(noise(seed, shape.HV), bias)


def state_cache(shape: Shape, count: int, seed: int) -> tuple[StateCache, torch.Tensor]:
    """As vLLM lays it out: conv state (a column's channels side by side), state, records; then a gap."""
    width = record_width(shape.H, shape.DK, shape.HV, shape.DV)
    columns = shape.W - 1 + shape.T - 1
    parts = [
        ((columns, shape.channels), shape.model),
        ((shape.HV, shape.DV, shape.DK), shape.state),
        ((shape.T, width), shape.model),
    ]
    sizes = [-(-torch.Size(size).numel() * dtype.itemsize // 16) * 16 for size, dtype in parts]
    whole = torch.zeros(count, sum(sizes) + shape.gap, dtype=torch.uint8, device=DEVICE)
    conv, state, records = (
        part.view(dtype)[:, : size.numel()].unflatten(1, size)
        for part, size, dtype in (
            (whole[:, start : start + length], torch.Size(size), dtype)
            for start, length, (size, dtype) in zip(
                (0, sizes[0], sizes[0] + sizes[1]), sizes, parts, strict=True
            )
        )
    )
    conv.copy_(noise(seed, *conv.shape, dtype=conv.dtype))
    state.copy_(noise(seed + 1, *state.shape, dtype=state.dtype))
    records.fill_(float("nan"))
    return StateCache(conv.transpose(1, 2), state, records), whole


def case(shape: Shape, counts: list[int], seed: int = 0, spare: int = 2) -> Case:
    """`counts`: rows per request, PADDING for padding. Requests stand on blocks in no order."""
    present = [PADDING_ROWS if count == PADDING else count for count in counts]
    starts = torch.tensor([0, *present]).cumsum(0).to(torch.int32)
    blocks = 1 + torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    blocks[torch.tensor(counts) == PADDING] = NULL_BLOCK
    # One column of a wider table, as a builder would pass it.
    table = torch.stack([blocks, blocks + 100], dim=1).to(torch.int32).to(DEVICE)
    cache, whole = state_cache(shape, 1 + len(counts) + spare, seed + 10)
    return Case(
        shape=shape,
        rows=rows(shape, sum(present), seed + 20),
        gating=gating(shape, seed + 30),
        cache=cache,
        batch=Batch(table[:, 0], starts.to(DEVICE)),
        counts=counts,
        whole=whole,
    )


def replay(case: Case, lengths: list[int], ops: ModuleType) -> Outcome:
    """Verify, rejected rows overwritten, commit; what the blocks then hold. Changes the case."""
    out, plan = case.out(), case.plan()
    ops.verify(case.rows, case.gating, case.cache, case.batch, out)
    ops.plan(case.batch, case.sampled(lengths), None, None, plan)
    for block, length in zip(case.batch.state_blocks.tolist(), lengths, strict=True):
        case.cache.records[block, length:] = float("nan")
    ops.Commit([(case.cache, case.gating, 0)], case.shape.W - 1)(case.batch, plan)
    return result(case, out)


def result(case: Case, out: torch.Tensor) -> Outcome:
    blocks = case.batch.state_blocks.long()
    return Outcome(out, case.cache.state[blocks], case.cache.conv[blocks, :, : case.shape.W - 1])


def conv_states(case: Case, lengths: list[int]) -> torch.Tensor:
    """Where a commit must find its conv states in the blocks as they are now: [R, channels, W - 1]."""
    history = case.shape.W - 1
    kept = [max(length, 1) - 1 for length in lengths]
    each = zip(case.batch.state_blocks.tolist(), kept, strict=True)
    return torch.stack([case.cache.conv[block, :, first : first + history] for block, first in each])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def differing(case: Case, left: Outcome, right: Outcome) -> set[str]:
    """In which parts two outcomes differ by at least one bit, padding left out."""
    parts = set()
    starts = case.batch.starts.tolist()
    for i in case.active:
        here = slice(starts[i], starts[i + 1])
        pairs = {
            "outputs": (left.outputs[here], right.outputs[here]),
            "state": (left.state[i], right.state[i]),
            "conv": (left.conv[i], right.conv[i]),
        }
        parts |= {name for name, (x, y) in pairs.items() if not torch.equal(bits(x), bits(y))}
    return parts


FP32 = Shape(H=2, HV=4, DK=64, DV=64)  # of vLLM's C++ kernel


def of_size(shape: Shape, T: int) -> Shape:
    return Shape(**{**vars(shape), "T": T})


def cpu_case(shape: Shape, counts: list[int], seed: int = 0) -> Case:
    """With a private scratch block per request behind the blocks of all requests."""
    made = case(shape, counts, seed, spare=len(counts))
    scratch = torch.arange(len(counts), dtype=torch.int32) + 1 + len(counts)
    made.batch = made.batch._replace(scratch=scratch)
    return made
