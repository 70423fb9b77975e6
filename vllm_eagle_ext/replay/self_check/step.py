# SPDX-License-Identifier: Apache-2.0
"""A made-up step of one layer, with everything in it that a real one has: ragged rows, steps over a
block boundary, padding, blocks that belong to nobody. And what vLLM's own kernels make of it by the
per-token scheme, which stores the state after every row.

Numbers come from generators of its own, on the CPU: the same on every rank and device, and the random
state of the run stays as it is. Letters as in `ops.types`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Align,
    Batch,
    CommitPlan,
    Gating,
    Rows,
    StateCache,
)

ALIGNMENT = 16  # bytes between the starts of state blocks are a multiple, as in vLLM's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Holds the sizes of a layer on one rank, and the dtypes of its parts."""

    H: int
    HV: int
    DK: int
    DV: int
    T: int  # 1 + K
    W: int = 4
    model: torch.dtype = torch.bfloat16
    state: torch.dtype = torch.float32
    A_log: torch.dtype = torch.float32
    dt_bias: torch.dtype = torch.bfloat16
    dim_first: bool = False  # vLLM's layout of conv states: [dim, columns] instead of [columns, dim]

    @property
    def channels(self) -> int:
        return 2 * self.H * self.DK + self.HV * self.DV

    def __str__(self) -> str:
        state, model = (str(dtype).removeprefix("torch.") for dtype in (self.state, self.model))
        heads = f"{self.H}/{self.HV} heads of {self.DK}/{self.DV}"
        return f"{heads}, {self.T} rows in {model}, states in {state}"


class MadeStep(NamedTuple):
    """One step of one layer, before it runs."""

    rows: Rows
    gating: Gating
    cache: StateCache  # views of `whole`
    whole: torch.Tensor  # [P, bytes of a block] uint8
    batch: Batch  # with scratch blocks, which a CPU needs; padding stands last
    num_sampled: torch.Tensor  # [R] int32
    align: Align
    lengths: list[int]  # rows of each request, without padding
    scratch: list[int]  # blocks that the operation may leave in any state

    @property
    def num_rows(self) -> int:
        """Return N without padding."""
        return sum(self.lengths)


def make_step(shapes: Shapes, device: torch.device, requests: int = 4, seed: int = 0) -> MadeStep:
    """Make a step of so many requests and one of padding.

    By turns a request fills its rows and passes a block boundary, keeps one of a few rows, is a
    chunk of one token inside a prompt, which samples nothing, and loses its last row.
    """
    T = shapes.T
    size = 4 * T  # of a block
    turns = [  # rows, sampled, tokens computed before
        (T, T, size - (T + 1) // 2),
        (max(T // 2, 1), 1, 1),
        (1, 0, 2),
        (T, max(T - 1, 1), 0),
    ]
    # Requests by turns.
    each = [turns[i % len(turns)] for i in range(requests)]
    lengths = [length for length, _, _ in each]
    # State blocks: of the requests, after their block boundary, of nobody, scratch.
    turn = seed % requests  # steps of several cache groups stand on different blocks
    order = [*range(requests, 0, -1)]
    blocks = [*order[turn:], *order[:turn], NULL_BLOCK]
    table = [[block, NULL_BLOCK] for block in blocks]
    total = requests + 1
    for i in range(0, requests, len(turns)):  # the other block at the block boundary
        table[i][1], total = total, total + 1
        if (seed + i // len(turns) + (requests > 1)) % 2:  # read the later one: V2 has copied the state
            table[i].reverse()
    total += 1  # a block of nobody's
    scratch = list(range(total, total + requests))

    def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    # Tensors, padding last.
    starts = torch.tensor([0, *lengths, min(2, T)]).cumsum(0).to(torch.int32)
    cache, whole = _make_cache(shapes, total + requests, device, seed)
    # One column of a wider table, as a builder passes it.
    column = int32([[block, 0] for block in blocks])[:, 0]
    return MadeStep(
        rows=_make_rows(shapes, int(starts[-1]), device, seed + 1),
        gating=Gating(
            _made_up(seed + 2, (shapes.HV,), shapes.A_log).to(device),
            _made_up(seed + 102, (shapes.HV,), shapes.dt_bias).to(device),
        ),
        cache=cache,
        whole=whole,
        batch=Batch(column, starts.to(device), int32([*scratch, NULL_BLOCK])),
        num_sampled=int32([*(sampled for _, sampled, _ in each), 0]),
        align=Align.of([int32(table)], int32([*(before for _, _, before in each), 0]), size),
        lengths=lengths,
        scratch=scratch,
    )


def empty_plan(step: MadeStep) -> CommitPlan:
    """Make a plan of values that may not survive."""
    shape = (4, len(step.batch.state_blocks))
    return CommitPlan(*torch.full(shape, 1 << 20, dtype=torch.int32, device=step.whole.device))


def copy_of(step: MadeStep, shapes: Shapes) -> MadeStep:
    """Copy the cache, so that one step may run twice."""
    whole = step.whole.clone()
    return step._replace(whole=whole, cache=_views(shapes, whole))


def _made_up(seed: int, size: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    made = torch.randn(size, generator=generator, device="cpu", dtype=torch.float32)
    return (made * scale).to(dtype)


def _make_rows(shapes: Shapes, count: int, device: torch.device, seed: int) -> Rows:
    """Make query, key and value views of one tensor, as the layer's convolution leaves them."""
    H, HV, DK, DV = shapes.H, shapes.HV, shapes.DK, shapes.DV
    packed = _made_up(seed, (count, shapes.channels), shapes.model).to(device)
    query, key, value = packed.split([H * DK, H * DK, HV * DV], dim=1)
    b, a = _made_up(seed + 100, (count, 2 * HV), shapes.model, 2.0).to(device).chunk(2, dim=1)
    return Rows(query.view(count, H, DK), key.view(count, H, DK), value.view(count, HV, DV), a, b)


def _parts(shapes: Shapes) -> list[tuple[tuple[int, ...], torch.dtype]]:
    columns = shapes.W - 1 + shapes.T - 1
    conv = (shapes.channels, columns) if shapes.dim_first else (columns, shapes.channels)
    width = record_width(shapes.H, shapes.DK, shapes.HV, shapes.DV)
    return [
        (conv, shapes.model),
        ((shapes.HV, shapes.DV, shapes.DK), shapes.state),
        ((shapes.T, width), shapes.model),
    ]


def _views(shapes: Shapes, whole: torch.Tensor) -> StateCache:
    """Lay a block out as vLLM does: conv state, state, records, one after the other."""
    views, start = [], 0
    for size, dtype in _parts(shapes):
        end = start + prod(size) * dtype.itemsize
        views.append(whole[:, start:end].view(dtype).unflatten(1, size))
        start = end
    conv, state, records = views
    return StateCache(conv if shapes.dim_first else conv.transpose(1, 2), state, records)


def _make_cache(
    shapes: Shapes, total: int, device: torch.device, seed: int
) -> tuple[StateCache, torch.Tensor]:
    size = sum(prod(size) * dtype.itemsize for size, dtype in _parts(shapes))
    size = -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT
    whole = torch.zeros(total, size, dtype=torch.uint8, device=device)
    cache = _views(shapes, whole)
    for part, number in ((cache.conv, seed + 3), (cache.state, seed + 4)):
        # One block's noise, turned by its number: to make that of all would take most of the check.
        noise = _made_up(number, tuple(part.shape[1:]), part.dtype).to(device)
        for block in range(total):
            part[block] = noise.roll(block, 0).roll(block, 1)
    cache.records.fill_(float("nan"))
    return cache, whole


class PerToken(NamedTuple):
    """What vLLM's kernel made of a step."""

    outputs: torch.Tensor  # [N, HV, DV]
    states: torch.Tensor  # [1 + N, HV, DV, DK]: the state after row n in block 1 + n

    def after(self, step: MadeStep, request: int, rows: int) -> torch.Tensor:
        """Return a request's state [HV, DV, DK] after so many of its rows."""
        return self.states[sum(step.lengths[:request]) + rows]


def run_per_token(step: MadeStep, kernel: Callable[..., torch.Tensor]) -> PerToken:
    """Run vLLM's kernel on the step's rows; the step stays as it is.

    Args:
        kernel: `gpu_kernel` or `cpu_kernel`. It runs R requests from the state in the column
            `accepted` - 1 of `table` [R, T], stores the state after row t into column t, and returns
            the outputs [N, HV, DV].
    """
    count, starts = step.num_rows, step.batch.starts[: len(step.lengths) + 1]
    # A block for each row, after the null block; 0 after a request's last row.
    row = starts[:-1, None] + torch.arange(max(step.lengths), dtype=torch.int32, device=starts.device)
    table = torch.where(row < starts[1:, None], 1 + row, 0)
    states = step.cache.state.new_zeros(1 + count, *step.cache.state.shape[1:])
    states[table[:, 0].long()] = step.cache.state[step.batch.state_blocks[: len(table)].long()]
    rows, first = Rows(*(part[:count] for part in step.rows)), torch.ones_like(starts[:-1])
    return PerToken(kernel(rows, step.gating, states, table, first, starts), states)


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
    outputs: torch.Tensor = out[0]
    return outputs


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
    outputs: torch.Tensor = ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
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
    return outputs
