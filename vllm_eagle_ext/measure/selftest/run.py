# SPDX-License-Identifier: Apache-2.0
"""Runs a self-test: checks of `replay.self_check` for many shapes and in a CUDA graph, then step times.

What it found is JSON that a user may send in: no host names, no paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.measure.engine.machine import gpus, processor, versions
from vllm_eagle_ext.measure.selftest import timing
from vllm_eagle_ext.replay.ops.types import Layer
from vllm_eagle_ext.replay.self_check import compared
from vllm_eagle_ext.replay.self_check.compared import (
    STEP_REQUESTS,
    KernelCheck,
    Kernels,
    Part,
    compare_bits,
    error_line,
    is_device_lost,
)
from vllm_eagle_ext.replay.self_check.step import MadeStep, Shapes, copy_of, empty_plan, make_step

WIDTH = 128  # of all their heads
# Key heads and value heads, as published.
TARGETS = {"Qwen3.6-27B": (16, 48), "Qwen3.6-35B-A3B": (16, 32), "Qwen3.5-397B-A17B": (16, 64)}
RANKS, KS, STATES = (1, 2, 4, 8), (3, 7, 15, 16), (torch.float32, torch.bfloat16)
# Each rank count, K and dtype of the state once or more.
QUICK = (("Qwen3.6-27B", 1, 15, STATES[0]), ("Qwen3.6-27B", 8, 3, STATES[1]),
         ("Qwen3.6-35B-A3B", 2, 7, STATES[0]), ("Qwen3.5-397B-A17B", 4, 16, STATES[1]))  # fmt: skip

# The sizes of one rank of eight, at which 48 layers take a few hundred MiB.
FEW = Shapes(H=2, HV=6, DK=WIDTH, DV=WIDTH, T=16)
TIMED = "Qwen3.6-27B"
BATCHES, QUICK_BATCHES, TIMED_KS = (1, 4, 16, 32, 64), (1, 16), (7, 15)
FORMAT = 2  # of the JSON; raised when a key changes its meaning
_PATH = re.compile(r"(?<![\w.])~?(?:/[\w.+@-]+){2,}/?")
SPARED = 0.8  # of the free memory at most

Watch = Callable[[str, int, int], None]  # what runs, how many are done, of how many


@dataclass(frozen=True, slots=True)
class Checked:
    """One check and its case: "Qwen3.6-27B, TP 1, K 15, float32 state"."""

    case: str
    result: KernelCheck


@dataclass(slots=True)
class SelfTest:
    """Collects what a self-test finds."""

    device: dict[str, Any]
    versions: dict[str, str]
    quick: bool
    checks: list[Checked] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    bandwidth: float | None = None  # bytes a second of a copy on the device
    left_out: list[str] = field(default_factory=list)  # and why

    @property
    def failed(self) -> list[Checked]:
        return [checked for checked in self.checks if not checked.result.ok]

    @property
    def exit_code(self) -> int:
        """Return 0: all is right; 1: something is not; 2: nothing could be checked."""
        if not self.checks:
            return 2
        return 1 if self.failed else 0

    def to_json(self) -> dict[str, Any]:
        sections = {
            "selftest": FORMAT, "exit_code": self.exit_code, "quick": self.quick,
            "device": self.device, "versions": self.versions,
            "checks": [_to_json(checked) for checked in self.checks],
            "copy_bandwidth": self.bandwidth, "times": self.times, "left_out": self.left_out,
        }  # fmt: skip
        return {key: without_paths(value) for key, value in sections.items()}


def without_paths(value: Any) -> Any:
    """Replace the paths in all texts: a compiler's message may name folders of the user's."""
    if isinstance(value, str):
        return _PATH.sub("<path>", value)
    if isinstance(value, dict):
        return {key: without_paths(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(part) for part in value]
    return value


def _to_json(checked: Checked) -> dict[str, Any]:
    result = checked.result
    equal = {part.name for part in result.parts if part.ok and part.limit is None}
    return {
        "case": checked.case, "kernels": result.kernels, "shapes": result.shapes, "ok": result.ok,
        "milliseconds_with_compilation": round(result.milliseconds, 1),
        **({} if result.error is None else {"error": result.error}),
        "equal": sorted(equal),
        "parts": [asdict(part) for part in result.parts if not part.ok or part.limit is not None],
    }  # fmt: skip


class SelfTestCase(NamedTuple):
    """One layer of a target on one of its ranks."""

    target: str
    ranks: int
    k: int
    state: torch.dtype

    @property
    def shapes(self) -> Shapes:
        key_heads, value_heads = TARGETS[self.target]
        H, HV = key_heads // self.ranks, value_heads // self.ranks
        return Shapes(H=H, HV=HV, DK=WIDTH, DV=WIDTH, T=1 + self.k, state=self.state)

    def __str__(self) -> str:
        return f"{self.target}, TP {self.ranks}, K {self.k}, {_name(self.state)} state"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cases(*, quick: bool) -> list[SelfTestCase]:
    """List all cases, or the few that show each size once."""
    return [
        SelfTestCase(*values) for values in (QUICK if quick else product(TARGETS, RANKS, KS, STATES))
    ]


def run_selftest(*, quick: bool, watch: Watch) -> SelfTest:
    """Check and time what this machine can.

    Raises:
        OptionsError: vLLM is for another platform than NVIDIA GPUs and CPUs.
    """
    kernels, device = _kernels_here()
    result = SelfTest(device=_describe(device), versions=versions(), quick=quick)
    jobs = list(_jobs(kernels, device, quick=quick))
    for number, (case, check) in enumerate(jobs):
        watch(case, number, len(jobs))
        checked = check()
        result.checks.append(Checked(case, checked))
        if checked.device_lost:
            result.left_out.append(f"all after {case}: no kernel runs in this process any more")
            return result
    watch("checks", len(jobs), len(jobs))
    if device.type == "cuda":
        failed = {checked.result.kernels for checked in result.failed}
        right = [each for each in kernels if not any(name.endswith(each.name) for name in failed)]
        _time_kernels(result, right, quick=quick, watch=watch)
    else:
        result.left_out.append("step times and CUDA graphs: there is no GPU here")
    return result


def _kernels_here() -> tuple[Sequence[Kernels], torch.device]:
    from vllm.platforms import current_platform

    from vllm_eagle_ext.replay.self_check.at_start import candidates

    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        raise OptionsError(
            field="vLLM's platform",
            value=current_platform.device_name,
            allowed="an NVIDIA GPU or a CPU",
            remedy="run this on a machine where replay is possible",
        )
    return candidates(), torch.device(current_platform.device_type)


def _describe(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {"type": "cpu", "name": processor(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    seen = gpus()
    return {
        "type": "cuda",
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "driver": seen[0].rpartition(", ")[2] if seen else None,
        "cuda": torch.version.cuda,
    }


def _jobs(
    kernels: Sequence[Kernels], device: torch.device, *, quick: bool
) -> Iterator[tuple[str, Callable[[], KernelCheck]]]:
    for each in kernels:
        for case in cases(quick=quick):
            yield str(case), partial(compared.run, each, case.shapes, device)
        if device.type == "cuda":
            yield "CUDA graph", partial(check_in_a_graph, each, FEW, device)


def _time_kernels(result: SelfTest, kernels: Sequence[Kernels], *, quick: bool, watch: Watch) -> None:
    """Time only what is right: what is wrong may well be fast."""
    batches = QUICK_BATCHES if quick else BATCHES
    sizes = list(product(STATES, TIMED_KS, batches))
    for number, (state, k, batch) in enumerate(sizes):
        case = f"times of K {k}, {batch} requests and states in {_name(state)}"
        watch(case, number, len(sizes))
        try:
            result.bandwidth = result.bandwidth or timing.copy_bandwidth()
            result.times += _times_of(SelfTestCase(TIMED, 1, k, state), batch, kernels)
        except Exception as error:  # noqa: BLE001 - what was timed before is worth having
            result.left_out.append(f"{case}: {error_line(error)}")
            if is_device_lost(error, torch.device("cuda")):
                return
        torch.cuda.empty_cache()
    watch("times", len(sizes), len(sizes))


def _times_of(case: SelfTestCase, batch: int, kernels: Sequence[Kernels]) -> list[dict[str, Any]]:
    """Time one size, with as many layers as fit."""
    free, _ = torch.cuda.mem_get_info()
    cache = torch.cuda.get_device_properties("cuda").L2_cache_size
    layers = timing.layers_for(case.shapes, batch, cache)
    while timing.needed_bytes(case.shapes, batch, layers) > SPARED * free:
        layers -= 1
        if layers < timing.LAYERS:
            raise MemoryError(f"{free / 2**30:.1f} GiB are free")
    scheme, accepted = timing.BothSchemes(case.shapes, batch, "cuda", layers), (case.k + 1) // 2
    fused = scheme.fused(accepted)
    others = {"fused": fused} if fused else {}
    return [
        {
            "kernels": each.name, "target": case.target, "k": case.k, "requests": batch,
            "state": _name(case.state), "rows_committed": accepted, "layers": layers,
            **timing.compare_times({
                "replay": scheme.replay(each, accepted),
                "per_token": scheme.per_token(each, accepted), **others,
            }),
        }
        for each in kernels
    ]  # fmt: skip


@torch.inference_mode()
def check_in_a_graph(kernels: Kernels, shapes: Shapes, device: torch.device) -> KernelCheck:
    """Capture verify and commit on one row per request, replay them on one step and, in the same memory,
    on another, whose requests have other numbers of rows: vLLM captures graphs for varying widths so."""
    parts = _graph_parts(kernels, shapes, device)
    return compared.collect(f"CUDA graph: {kernels.name}", shapes, device, parts)


def _graph_parts(kernels: Kernels, shapes: Shapes, device: torch.device) -> Iterator[Part]:
    step, other = (make_step(shapes, device, STEP_REQUESTS, seed) for seed in (0, 50))
    out, run = _plain_run(kernels, shapes, step)
    first, second = (copy_of(each, shapes) for each in (step, other))
    graph = torch.cuda.CUDAGraph()
    run()  # compiles, and fills what is filled once
    _narrow(step)
    with torch.cuda.graph(graph):
        run()
    for name, fresh in (("in a graph", first), ("with other rows", second)):
        _refill(step, fresh)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        yield from _beside_plain_run(name, kernels, shapes, fresh, step, out)


def _plain_run(
    kernels: Kernels, shapes: Shapes, step: MadeStep
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return outputs, and what computes them and commits the step."""
    out, plan = torch.full_like(step.rows.value, float("nan")), empty_plan(step)
    batch = kernels.prepare(step.batch, shapes.T)
    apply = kernels.module.Commit([Layer(step.cache, step.gating, 0)], shapes.W - 1)

    def run() -> None:
        kernels.module.verify(step.rows, step.gating, step.cache, batch, out)
        kernels.module.plan(batch, step.num_sampled, None, step.align, plan)
        apply(batch, plan)

    return out, run


def _narrow(step: MadeStep) -> None:
    """Leave each request its first row; the rows after them belong to nobody."""
    starts = step.batch.starts
    starts.copy_(torch.arange(len(starts), dtype=starts.dtype, device=starts.device))
    step.num_sampled.fill_(1)


def _refill(step: MadeStep, fresh: MadeStep) -> None:
    """Give a step the content of another one of the same sizes, where a graph reads it.

    Scratch blocks, and how many tokens were computed, are those of all steps.
    """
    mine, theirs = (
        (*s.rows, *s.gating, s.batch.state_blocks, s.batch.starts, s.num_sampled, s.whole)
        + tuple(s.align.tables.tensors)
        for s in (step, fresh)
    )
    for tensor, other in zip(mine, theirs, strict=True):
        tensor.copy_(other)


def _beside_plain_run(
    name: str, kernels: Kernels, shapes: Shapes, fresh: MadeStep, step: MadeStep, out: torch.Tensor
) -> list[Part]:
    """Compare outputs and cache with those of the same step run plainly."""
    expected, run = _plain_run(kernels, shapes, fresh)
    run()
    count = fresh.num_rows
    kept = [block for block in range(len(step.whole)) if block not in step.scratch]
    return [
        compare_bits(f"outputs {name}", out[:count], expected[:count]),
        compare_bits(f"cache {name}", step.whole[kept], fresh.whole[kept]),
    ]
