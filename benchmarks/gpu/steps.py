# SPDX-License-Identifier: Apache-2.0
"""Steps and speed at a quarter of Qwen3.6-27B on a quarter of its memory.

A quarter: 16 of its 64 layers at their full widths, a quarter of its vocabulary, one of the five layers
of its DFlash draft, and a quarter of what the whole pair leaves for the KV cache on a GPU of 80 GB. So
as many requests fit as on the whole model, with a block of state per token and with replay, and a step
takes about a quarter. Weights are dummies; drafts are accepted by lot, as in `virtual_clock`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.pool import Job, Outcome
from benchmarks.gpu_shapes import write
from benchmarks.shapes.hybrid import QWEN_27B
from benchmarks.step_model.modelled import RATES as CLOCK_RATES

QUARTER = replace(QWEN_27B["real"], vocabulary=62080, draft_layers=1)
POOL = int(18.09 * 2**30 / 4)  # `vllm-eagle plan`: 24 requests of 1,600 tokens at K = 3, 61 with replay
RATES = [*CLOCK_RATES, *[0.05] * 8]  # up to K = 15
VARIANTS = (
    ("replay", 7), ("per_token", 3), ("per_token", 7), ("none", 0), ("replay", 3), ("stock", 7),
    ("replay", 15), ("per_token", 15),
)  # fmt: skip


def jobs(scale: str, folder: Path) -> tuple[list[Job], list[Job]]:
    """Write target and draft. Returns what must be measured, and the rest in the order of its value."""
    shape = QUARTER if scale == "real" else QWEN_27B["tiny"]
    target = write(folder / "target", shape.target())
    draft = write(folder / "dflash", shape.draft(), shape.tensors())
    variants = VARIANTS if scale == "real" else (("replay", 7), ("stock", 7))
    made = [_job(scheme, k, target, draft, scale) for scheme, k in variants]
    return made[:3], made[3:]


def _job(scheme: str, k: int, target: Path, draft: Path, scale: str) -> Job:
    real = scale == "real"
    engine: dict[str, Any] = {
        "model": str(target), "skip_tokenizer_init": True, "load_format": "dummy", "seed": 0,
        "max_model_len": 1600 if real else 128, "max_num_seqs": 32 if real else 2,
        "max_num_batched_tokens": 8192 if real else 128,
        "dtype": "bfloat16", "enable_prefix_caching": False,
        "kv_cache_memory_bytes": POOL if real else 1 << 28, "disable_log_stats": False,
        "gpu_memory_utilization": 0.06 if torch.cuda.is_available() else 0.3,
        "additional_config": {"gdn_prefill_backend": "triton"},
    }  # fmt: skip
    if k:
        engine["speculative_config"] = {
            "method": "dflash", "model": str(draft), "num_speculative_tokens": k,
            "draft_load_config": {"load_format": "auto"},
        }  # fmt: skip
        if torch.cuda.is_available():  # a CPU's sampler has no lot
            engine["speculative_config"] |= {
                "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES[:k]
            }  # fmt: skip
        if scheme != "stock":
            engine["additional_config"]["eagle_ext"] = {"hybrid_state": scheme}
    sizes = {"prompt": 1024, "step_tokens": 192, "clients": 32, "answer": 512, "rounds": 4}
    if not real:
        sizes = {"prompt": 16, "step_tokens": 32, "clients": 2, "answer": 16, "rounds": 2}
    given = {**sizes, "requests": [1, 8, 32] if real else [1]}
    return Job(
        name=f"quarter {scheme} {k}", ask="serve", engine=engine, given=given, memory=0.26, timed=True,
        level="compiled" if real else "eager",
        environment={"VLLM_PLUGINS": ""} if scheme == "stock" else {},
    )  # fmt: skip


def report(done: dict[str, Outcome]) -> list[str]:
    """Give step times and speeds, with and without drafts."""
    ended = [outcome for outcome in done.values() if outcome.job.ask == "serve"]
    lines = []
    for outcome in ended:
        result = outcome.result
        if result is None:
            lines.append(f"{outcome.job.name}: FAILED {outcome.error[-160:]!r}")
            continue
        lines.append(
            f"{outcome.job.name} ({outcome.job.level}): steps {result['step_ms']} ms; "
            f"{result['tokens_per_s']} tokens/s, {result['mean_running']} requests at a time"
        )
    speeds = {each.job.name: each.result["tokens_per_s"] for each in ended if each.result}
    per_token = [speed for name, speed in speeds.items() if "per_token" in name]
    replay = [speed for name, speed in speeds.items() if "replay" in name]
    if per_token and replay:
        ratio = max(replay) / max(per_token)
        lines.append(f"the best of replay against the best of per_token: {ratio:.2f}")
    return lines
