# SPDX-License-Identifier: Apache-2.0
"""The tiny pairs: texts against those without a draft, acceptance against a CPU's, schemes compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.pool import Job, Outcome

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny"
# By drafted position, of docs/dev/evidence.md.
ON_CPUS = {
    "native": [0.697, 0.532, 0.383, 0.286],
    "postnorm": [0.739, 0.591, 0.485, 0.406],
    "gated": [0.744, 0.595, 0.491, 0.420],
    "dflash": [0.494, 0.246, 0.136, 0.092, 0.060, 0.050, 0.045],
}
# Pairs whose texts should be equal.
COMPARED = (
    ("hybrid replay", "hybrid per_token"),
    ("hybrid replay", "hybrid auto"),
    ("hybrid replay", "hybrid sequential"),
    ("hybrid sequential", "hybrid per_token"),
    ("dense postnorm", "dense postnorm eager"),
)


def jobs(scale: str) -> tuple[list[Job], list[Job]]:
    """List hybrid pairs, then dense ones, in the order of their value."""
    hybrids = [
        _job("hybrid none", scale),
        _job("hybrid replay", scale, "dflash", hybrid_state="replay"),
        _job("hybrid per_token", scale, "dflash", hybrid_state="per_token"),
        _job("hybrid replay cached", scale, "dflash", hybrid_state="replay"),
    ]
    others = [
        *(_job(f"dense {name}", scale, name) for name in ("none", "native", "postnorm", "gated")),
        _job("hybrid auto", scale, "dflash"),
        _job("hybrid sequential", scale, "dflash", hybrid_state="replay", replay_kernels="sequential"),
        _job("dense postnorm eager", scale, "postnorm", level="eager"),
        _job("dense gated bf16", scale, "gated"),
        _job("dense none bf16", scale),
    ]
    return (hybrids, others) if scale == "real" else (hybrids[:2], others[:1])


def _job(name: str, scale: str, draft: str = "", level: str = "compiled", **options: str) -> Job:
    hybrid, on_gpu = name.startswith("hybrid"), torch.cuda.is_available()
    target = TINY / ("hybrid_target" if hybrid else "target")
    engine: dict[str, Any] = {
        "model": str(target), "max_model_len": 512, "max_num_seqs": 16, "seed": 0,
        "dtype": "bfloat16" if name.endswith("bf16") or hybrid else "float32",
        "disable_log_stats": False, "gpu_memory_utilization": 0.06, "kv_cache_memory_bytes": 1 << 30,
        "enable_prefix_caching": name.endswith("cached"),
        # FlashInfer's prefill, which vLLM prefers on Hopper, may be absent.
        "additional_config": {"gdn_prefill_backend": "triton", "eagle_ext": options},
    }  # fmt: skip
    if engine["dtype"] == "float32" and on_gpu:
        engine["attention_backend"] = "TRITON_ATTN"
    if not on_gpu:
        engine |= {"kv_cache_memory_bytes": 1 << 28, "gpu_memory_utilization": 0.3}
    if draft and draft != "none":
        method, k = ("dflash", 7) if draft == "dflash" else ("eagle3", 4)
        engine["speculative_config"] = {
            "method": method, "model": str(TINY / draft), "num_speculative_tokens": k
        }  # fmt: skip
    few = scale != "real"
    given = {"prompts": _prompts(target, 2 if few else 120), "tokens": 8 if few else 64}
    if engine["enable_prefix_caching"]:
        given["twice"] = True
    return Job(
        name=name,
        ask="generate",
        engine=engine,
        given=given,
        level="eager" if few else level,
    )


def _prompts(target: Path, count: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    lines = (TINY / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]


def report(done: dict[str, Outcome]) -> list[str]:
    """Compare what ended, and store what was compared with each engine's result."""
    results = {name: outcome.result for name, outcome in done.items() if outcome.job.ask == "generate"}
    lines = []
    for name, result in results.items():
        if result is None:
            lines.append(f"{name}: FAILED {done[name].error[-160:]!r}")
            continue
        base = results.get(_base(name))
        if base:
            result["as_without_a_draft"] = [_equal(result, base), len(base["tokens"])]
        rates, draft = _acceptance(result), _draft(done[name].job)
        if rates:
            result["acceptance"] = rates
        on_cpus = f"; on CPUs {ON_CPUS[draft]}" if rates else ""
        again = f"; again from the cache: {result['again']}" if "again" in result else ""
        lines.append(
            f"{name} ({done[name].job.level}): texts as without a draft "
            f"{result.get('as_without_a_draft', '-')}; accepted {rates or '-'}{on_cpus}{again}"
        )
    for first, second in COMPARED:
        one, other = results.get(first), results.get(second)
        if one and other:
            one.setdefault("equal_texts", {})[second] = _equal(one, other)
            same = one["counters"] == other["counters"]
            lines.append(
                f"{first} and {second}: {_equal(one, other)} equal texts, counters equal: {same}"
            )
    return lines


def _base(name: str) -> str:
    return f"{name.split()[0]} none" + (" bf16" if name.endswith("bf16") else "")


def _draft(job: Job) -> str:
    config = job.engine.get("speculative_config")
    return Path(config["model"]).name if config else ""


def _equal(one: dict[str, Any], other: dict[str, Any]) -> int:
    return sum(a == b for a, b in zip(one["tokens"], other["tokens"], strict=True))


def _acceptance(result: dict[str, Any]) -> list[float]:
    """Return the share of drafts that are accepted at each position."""
    counters = result["counters"]
    drafts = counters.get("spec_decode_num_drafts")
    accepted = counters.get("spec_decode_num_accepted_tokens_per_pos", [])
    return [round(count / drafts, 3) for count in accepted] if drafts else []
