# SPDX-License-Identifier: Apache-2.0
"""Runs verify, plan and commit on a made-up step and vLLM's own kernel, and says which values differ, or
which kernel raised and whether the device runs another one after it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, Align, Batch, Layer, ReplayKernels
from vllm_eagle_ext.replay.self_check.step import (
    MadeStep,
    PerToken,
    Shapes,
    copy_of,
    empty_plan,
    make_step,
    run_per_token,
)

# Of PyTorch and of Triton's launcher; the number of an error is in neither's exception everywhere.
CUDA_ERRORS = ("CUDA error", "Triton Error [CUDA]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Compares one part of a step with what was expected.

    limit: of `error`, for kernels that may round otherwise than vLLM's; None: not one bit may differ.
    """

    name: str
    values: int
    differing: int
    max_abs: float = 0.0
    max_rel: float = 0.0  # of the largest expected magnitude
    first: str | None = None  # where the first difference is, and what stands there
    error: float = 0.0  # relative to fp64, root mean square
    limit: float | None = None

    @property
    def ok(self) -> bool:
        return self.differing == 0 if self.limit is None else self.error <= self.limit  # not of a NaN

    def __str__(self) -> str:
        if self.limit is not None:
            return f"{self.name}: error {self.error:.3g} of fp64, allowed {self.limit:.3g}"
        if self.ok:
            return f"{self.name}: equal in all bits"
        return (
            f"{self.name}: {self.differing} of {self.values} values differ, by up to {self.max_abs:.3g} "
            f"({self.max_rel:.3g} of the largest), first {self.first}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCheck:
    """Says whether kernels do on this device what vLLM's own do."""

    kernels: str  # "sequential", "chunked"
    shapes: str
    parts: tuple[Part, ...] = ()
    milliseconds: float = 0.0
    error: str | None = None  # of a kernel that raised
    device_lost: bool = False  # after that error nothing runs any more in this process

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.parts) and all(part.ok for part in self.parts)

    def __str__(self) -> str:
        """Write one line."""
        wrong = [str(part) for part in self.parts if not part.ok]
        bounded = "; ".join(str(part) for part in self.parts if part.limit is not None)
        said = (bounded or "all bits as vLLM's own") + f" ({self.milliseconds:.0f} ms)"
        if self.error is not None:
            said = f"failed with {self.error}"
        elif wrong:
            said = "; ".join(wrong)
        return f"{self.kernels} kernels, {self.shapes}: {said}"


@contextmanager
def calling(kernel: str, device: torch.device) -> Iterator[None]:
    """Note the kernel in what it raises. A GPU lags the host: its errors are waited for."""
    try:
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:
        error.add_note(f"in {kernel}")
        raise


# Kernels that sum in another order than vLLM's may err so many times as much as vLLM's own, which is
# itself compared with fp64. Over 256 steps the tests hold them to 1.5; one step of a few rows scatters
# more, and what is broken errs a thousand times as much.
FACTOR = 2.0
# Where vLLM's kernel happens to be nearer than that: the root mean square of one rounding is 0.3 to 0.6
# of the largest one.
ROUNDINGS = 0.5


# Kernels whose tiles depend on the number of requests are checked with one request, and with more value
# heads than this in all requests together.
MANY_HEADS = 128
STEP_REQUESTS = 4  # they make a step with everything in it


class Kernels(NamedTuple):
    """One implementation of the operation, as the check runs it."""

    name: str  # "sequential", "chunked"
    module: ReplayKernels
    exact: bool  # all bits are to be vLLM's
    prepare: Callable[[Batch, int], Batch]  # `ReplayOps.prepare`
    per_token: Callable[..., torch.Tensor]  # vLLM's own on the same device, as `run_per_token` takes it

    def batches(self, shapes: Shapes) -> tuple[int, ...]:
        """Say how many requests the steps have that show all there is."""
        return (STEP_REQUESTS,) if self.exact else (1, max(STEP_REQUESTS, MANY_HEADS // shapes.HV + 1))


@torch.inference_mode()
def run(kernels: Kernels, shapes: Shapes, device: torch.device, seed: int = 0) -> KernelCheck:
    """Check kernels on made-up steps."""

    def parts() -> Iterator[Part]:
        with torch.device("cpu"):  # vLLM builds models where another one is the default
            for requests in kernels.batches(shapes):
                yield from _compare_step(kernels, shapes, make_step(shapes, device, requests, seed))

    return collect(kernels.name, shapes, device, parts())


def collect(name: str, shapes: Shapes, device: torch.device, parts: Iterator[Part]) -> KernelCheck:
    """Collect the parts of a check. Never raises: a kernel that fails is a result, too."""
    started, compared = time.perf_counter(), list[Part]()
    error, is_lost = None, False
    try:
        compared.extend(parts)
    except Exception as raised:  # noqa: BLE001 - whatever it is, these kernels do not serve
        error, is_lost = error_line(raised), is_device_lost(raised, device)
    return KernelCheck(
        kernels=name, shapes=str(shapes), parts=tuple(compared), error=error, device_lost=is_lost,
        milliseconds=1e3 * (time.perf_counter() - started),
    )  # fmt: skip


def _compare_step(kernels: Kernels, shapes: Shapes, step: MadeStep) -> Iterator[Part]:
    device = step.whole.device
    # vLLM's kernel, then ours on the same step.
    with calling("vLLM's own kernel", device):
        theirs = run_per_token(step, kernels.per_token)
    before, plan = copy_of(step, shapes), empty_plan(step)
    out, batch = torch.full_like(step.rows.value, float("nan")), kernels.prepare(step.batch, shapes.T)
    with calling("verify", device):
        kernels.module.verify(step.rows, step.gating, step.cache, batch, out)
    with calling("plan", device):
        compared = _compare_plans(kernels, step, batch)
        kernels.module.plan(batch, step.num_sampled, None, step.align, plan)
    yield compared
    if kernels.exact:
        keys = torch.cat([part[: step.num_rows].flatten(1) for part in step.rows[1:]], dim=1)
        records = [step.cache.records[_block_of(step, i), :n] for i, n in enumerate(step.lengths)]
        yield compare_bits("recorded inputs", torch.cat(records), keys)
    with calling("commit", device):
        commit = kernels.module.Commit([Layer(step.cache, step.gating, 0)], shapes.W - 1)
        commit(batch, plan)

    # What was written, and what nobody had to write.
    written = list(_written(step))
    yield from _compare_results(kernels, step, before, theirs, out, written)
    history = shapes.W - 1
    moved = torch.stack([step.cache.conv[block, :, :history] for _, _, block in written])
    yield compare_bits("conv states", moved, torch.stack([
        before.cache.conv[_block_of(step, i), :, rows - 1 : rows - 1 + history] for i, rows, _ in written
    ]))  # fmt: skip
    yield _compare_others(step, before, written, history)


def _block_of(step: MadeStep, request: int) -> int:
    return int(step.batch.state_blocks[request])


def _written(step: MadeStep) -> Iterator[tuple[int, int, int]]:
    """Yield request, rows and block of every state that the commit has to write."""
    plan = empty_plan(step)
    reference.plan(step.batch, step.num_sampled, None, step.align, plan)
    count, final, block_end, lengths = (part.tolist() for part in plan)
    for i in range(len(step.lengths)):
        yield i, count[i], final[i]
        if block_end[i] > NULL_BLOCK:
            yield i, lengths[i], block_end[i]


def _compare_plans(kernels: Kernels, step: MadeStep, batch: Batch) -> Part:
    """Compare all four forms: with and without block boundaries, requests in their places or
    elsewhere."""
    requests, align = len(batch.state_blocks), step.align
    elsewhere = torch.arange(requests - 1, -1, -1, dtype=torch.int32, device=step.whole.device)
    turned = elsewhere.long()
    tables = [table[turned] for table in align.tables.tensors]
    there = Align.of(tables, align.num_computed[turned], align.block_size)
    forms: list[tuple[torch.Tensor | None, torch.Tensor, Align | None]] = [
        (None, step.num_sampled, None),
        (None, step.num_sampled, align),
        (elsewhere, step.num_sampled[turned], None),
        (elsewhere, step.num_sampled[turned], there),
    ]
    mine: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for indices, sampled, form in forms:
        for run_plan, plans in ((kernels.module.plan, mine), (reference.plan, expected)):
            plan = empty_plan(step)
            run_plan(batch, sampled, indices, form, plan)
            plans.append(torch.stack(list(plan)))
    return compare_bits("plan", torch.stack(mine), torch.stack(expected))


def _compare_results(
    kernels: Kernels, step: MadeStep, before: MadeStep, theirs: PerToken, out: torch.Tensor,
    written: list[tuple[int, int, int]],
) -> Iterator[Part]:  # fmt: skip
    """Compare outputs and written states with vLLM's own; those that may round otherwise with fp64."""
    count = step.num_rows
    ours = out[:count], torch.stack([step.cache.state[block] for _, _, block in written])
    after = torch.stack([theirs.after(step, i, rows) for i, rows, _ in written])
    results = zip(("outputs", "states"), ours, (theirs.outputs[:count], after), strict=True)
    if kernels.exact:
        yield from (compare_bits(*result) for result in results)
        return
    for (name, mine, stock), exact in zip(results, _in_fp64(before, written), strict=True):
        unit = torch.finfo(mine.dtype).eps / 2
        limit = max(FACTOR * relative_error(stock, exact), ROUNDINGS * unit)
        yield compare_error(name, mine, exact, limit)


def _in_fp64(before: MadeStep, written: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the reference's outputs [N, HV, DV] and the states to write, in fp64."""
    conv, state, records = before.cache
    cache = before.cache._replace(conv=conv.clone(), state=state.double(), records=records.clone())
    out, plan = before.rows.value.double(), empty_plan(before)
    reference.verify(before.rows, before.gating, cache, before.batch, out)
    reference.plan(before.batch, before.num_sampled, None, before.align, plan)
    reference.Commit([Layer(cache, before.gating, 0)], 1)(before.batch, plan)
    states = torch.stack([cache.state[block] for _, _, block in written])
    return out[: before.num_rows], states


def _compare_others(
    step: MadeStep, before: MadeStep, written: list[tuple[int, int, int]], history: int
) -> Part:
    """Compare every byte that nobody had to write: the null block, the blocks of nobody, what lies
    between."""
    for _, _, block in written:
        before.cache.state[block] = step.cache.state[block]
        before.cache.conv[block, :, :history] = step.cache.conv[block, :, :history]
    for i in range(len(step.lengths)):
        before.cache.records[_block_of(step, i)] = step.cache.records[_block_of(step, i)]
    kept = [block for block in range(len(step.whole)) if block not in step.scratch]
    return compare_bits("other bytes", step.whole[kept], before.whole[kept])


def error_line(error: Exception) -> str:
    """Say in one line what was raised, and by which kernel if that is known."""
    lines = [*str(error).strip().splitlines()[:1], *getattr(error, "__notes__", ())[-1:]]
    return f"{type(error).__name__}: {', '.join(lines)}"


def is_device_lost(error: Exception, device: torch.device) -> bool:
    """Find out whether each further call of this process fails, as after an illegal memory access.

    CUDA answers with the first error until the process ends. Others, such as memory that is short or a
    launch that it does not take, leave the device as it was.
    """
    says_so = any(kind in str(error) for kind in CUDA_ERRORS)
    is_cuda = says_so or isinstance(error, torch.AcceleratorError)
    if not is_cuda or device.type != "cuda":
        return is_cuda
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def compare_bits(name: str, mine: torch.Tensor, expected: torch.Tensor) -> Part:
    """Compare bit for bit; both of one shape and dtype."""
    differs = _bits(mine) != _bits(expected)
    count = int(differs.sum())
    if not count:
        return Part(name=name, values=mine.numel(), differing=0)
    max_abs, max_rel = _largest(mine, expected)
    at = tuple(int(i) for i in torch.unravel_index(differs.flatten().int().argmax(), mine.shape))
    first = f"at {list(at)}: {mine[at].item():.6g} for {expected[at].item():.6g}"
    return Part(
        name=name, values=mine.numel(), differing=count, max_abs=max_abs, max_rel=max_rel, first=first
    )


def compare_error(name: str, mine: torch.Tensor, exact: torch.Tensor, limit: float) -> Part:
    """Compare with fp64 values."""
    max_abs, max_rel = _largest(mine, exact)
    return Part(
        name=name, values=mine.numel(), differing=int((mine.double() != exact).sum()),
        max_abs=max_abs, max_rel=max_rel, error=relative_error(mine, exact), limit=limit,
    )  # fmt: skip


def relative_error(mine: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root mean square of the differences, relative to that of the fp64 values."""
    return float((mine.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def _largest(mine: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference, itself and relative to the largest expected magnitude; inf of a
    NaN."""
    expected = expected.double()
    largest = float((mine.double() - expected).abs().max())
    if math.isnan(largest):
        return math.inf, math.inf
    return largest, largest / max(float(expected.abs().max()), 1e-300)
