# SPDX-License-Identifier: Apache-2.0
"""A roofline of a target and its draft.

The model: each product takes what is longer, reading its weights or computing its rows. Keys, values,
recurrent states, the draft's passes and 1 ms of the host come on top; nothing overlaps. Recurrent states
take the times of `GPUS`. It leaves out launches, collectives and a prompt's attention, so that real
steps take longer, those of drafting most.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from tests.support.published import BYTES, Published
from tests.support.virtual_clock import Load
from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.memory.geometry import Attention, Recurrent
from vllm_eagle_ext.memory.parameter_count import bytes_per_step
from vllm_eagle_ext.plan.model_files import Draft

REACHED_BANDWIDTH, REACHED_PEAK = 0.8, 0.6  # shares of the vendor's figures; assumptions
HOST_S = 1e-3
# Chance that at least so many drafts are accepted: 2.89 and 3.76 tokens a step at K = 3 and 7; assumed.
RATES = (0.80, 0.62, 0.47, 0.35, 0.25, 0.17, 0.10)
_STATE = 48 * 128 * 128 * 4  # bytes of the modelled layer's, Qwen3.6-27B's in fp32
_REQUESTS = 32  # at which times of states are taken, or the nearest
MEASURED = Path(__file__).parents[1] / "results" / "gpu_h100.json"
_NOT_READ = ("embed_tokens", "lm_head", "d2t", "t2d", "mask_embedding")


@dataclass(frozen=True)
class Gpu:
    name: str
    gib: int
    bandwidth: float  # bytes/s that are reached
    flops: float  # in bf16 that are reached
    state_us: dict[str, dict[int, float]]  # scheme -> K -> microseconds per request and layer


def state_times(file: dict[str, Any], requests: int = _REQUESTS) -> dict[str, dict[int, float]]:
    """Return the microseconds per request and layer of a self-test: scheme -> K, with replay's faster
    kernels, states in fp32, and the number of requests that is nearest."""
    times: dict[str, dict[int, float]] = {"per_token": {}, "replay": {}}
    for k in sorted({int(row["k"]) for row in file["times"]}):
        rows = [row for row in file["times"] if row["k"] == k and row.get("state") != "bfloat16"]
        row = min(rows, key=lambda row: (abs(row["requests"] - requests), row["replay_ms"]))
        for scheme, by_k in times.items():
            by_k[k] = 1e3 * float(row[f"{scheme}_ms"]) / (row["layers"] * row["requests"])
    return times


# Multiprocessors, multiply-adds per clock of each, clock: the vendor's. The H100's times of states are
# measured. The H200's were modelled from the machine code of vLLM's kernel and the chunked ones, at 32
# requests; the H100 took 1.4 to 1.5 times as long for replay, 1.1 times for per_token.
_FLOPS = REACHED_PEAK * 2 * 132 * 2048 * 1.83e9
GPUS = {
    "H100": Gpu(
        "H100", 80, REACHED_BANDWIDTH * 3.35e12, _FLOPS,
        state_times(json.loads(MEASURED.read_text(encoding="utf-8"))),
    ),
    "H200": Gpu("H200", 140, REACHED_BANDWIDTH * 4.8e12, _FLOPS, {
        "per_token": {3: 3.68, 7: 6.64, 15: 12.5}, "replay": {3: 3.5, 7: 3.5, 15: 3.5},
    }),
}  # fmt: skip


def time_at(times: Mapping[int, float], k: int) -> float:
    """Return the time at K: in proportion between known K, beyond them as between the nearest two."""
    points = sorted(times.items())
    pairs = list(pairwise(points))
    (k0, t0), (k1, t1) = next(((a, b) for a, b in pairs if k <= b[0]), pairs[-1])
    return t0 + (t1 - t0) * (k - k0) / (k1 - k0)


class StepTimes(Protocol):
    def seconds(self, scheme: str, k: int, load: Load) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What of a target and its draft a step's time follows from; layers are those of one GPU."""

    config: dict[str, Any]  # the target's
    attention: Sequence[Attention]  # the target's layers
    recurrent: Recurrent | None
    draft_layers: Sequence[Attention]
    draft_bytes: int  # that one pass reads, its head included
    one_pass: bool  # it drafts K tokens at once


def pair_of(
    planned: Draft | None,
    draft: Published,
    config: dict[str, Any],
    attention: Sequence[Attention],
    recurrent: Recurrent | None = None,
) -> Pair:
    """Take the sizes from a plan, and from the names of the draft's tensors what a pass reads."""
    assert planned is not None
    assert planned.head_read is not None
    read = sum(
        math.prod(shape) * BYTES[dtype]
        for name, (dtype, shape) in draft.tensors.items()
        if not any(part in name for part in _NOT_READ)
    )
    return Pair(
        config=config, attention=attention, recurrent=recurrent,
        draft_layers=planned.layers, draft_bytes=read + planned.head_read.size,
        one_pass=planned.head_read.per == "block",
    )  # fmt: skip


@dataclass(frozen=True)
class Modelled:
    pair: Pair
    gpu: Gpu

    def seconds(self, scheme: str, k: int, load: Load) -> float:
        n, gpu = load.requests, self.gpu
        rows = n * (1 + k) + load.prompt_rows
        read = bytes_per_step(self.pair.config, rows=rows)
        assert read is not None
        time = max(read / gpu.bandwidth, self._flops * rows / gpu.flops) + HOST_S
        time += n * _kept(self.pair.attention, load.context) / gpu.bandwidth
        time += n * self._states_s(scheme, k)
        return time + (self._draft_s(k, n, load) if k and n else 0.0)

    @property
    def _flops(self) -> float:
        """Of one row: two per parameter that it meets; the config's quantisation stores them smaller."""
        text = {k: v for k, v in text_config(self.pair.config).items() if k != "quantization_config"}
        read = bytes_per_step(text)
        assert read is not None
        return float(read)  # two bytes per parameter

    def _states_s(self, scheme: str, k: int) -> float:
        recurrent = self.pair.recurrent
        if recurrent is None:
            return 0.0
        if scheme == "none":
            return recurrent.layers * 2 * recurrent.ssm_bytes / self.gpu.bandwidth
        layer_s = time_at(self.gpu.state_us[scheme], k) * 1e-6 * recurrent.ssm_bytes / _STATE
        return recurrent.layers * max(layer_s, 2 * recurrent.ssm_bytes / self.gpu.bandwidth)

    def _draft_s(self, k: int, n: int, load: Load) -> float:
        """The first pass also computes the step's rows, in which the accepted ones are."""
        pair, gpu = self.pair, self.gpu
        kept = n * _kept(pair.draft_layers, load.context) / gpu.bandwidth
        passes = [n * (1 + k)] if pair.one_pass else [n * (1 + k), *[n] * (k - 1)]
        return sum(
            max(pair.draft_bytes / gpu.bandwidth, pair.draft_bytes * rows / gpu.flops) + kept
            for rows in passes
        )


def _kept(layers: Sequence[Attention], context: float) -> float:
    """Bytes of one request's keys and values that a pass reads."""
    return sum(
        a.layers * a.token_bytes * (context if a.window is None else min(a.window, context))
        for a in layers
    )
