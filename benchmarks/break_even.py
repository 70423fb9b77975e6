# SPDX-License-Identifier: Apache-2.0
"""Which acceptance length pays, by the step-time model: T(K) over T(0) of published pairs.

python -m benchmarks.break_even            # writes benchmarks/results/break_even.json
python -m benchmarks.break_even --write    # and, with the virtual clock's results, docs/performance.md
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.step_model import GPUS, Modelled, Pair, pair_of
from tests.support.published import Published, materialise, published
from tests.support.virtual_clock import Load
from tests.unit.memory.configs import GIB_27B, config
from vllm_eagle_ext.memory.geometry import Attention, head_dim
from vllm_eagle_ext.plan.model_files import read_draft
from vllm_eagle_ext.plan.run import Plan, PlanRequest, run_plans

RESULT = Path(__file__).parent / "results" / "break_even.json"
CONTEXT = 1024  # tokens of each request
REQUESTS, KS = (1, 8, 32, 128), (1, 3, 7)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published pair. `missing` is what the fixture leaves out of the target's config."""

    title: str
    draft: str  # fixture
    target: str | None = None  # fixture of a hybrid target
    missing: dict[str, Any] | None = None
    weights_gib: float = 0  # of a hybrid target, without images and norms; others fit
    published: dict[str, str]  # acceptance length and K -> source and texts


LLAMA_8B, QWEN_8B = {"intermediate_size": 14336}, {"intermediate_size": 12288}


def gpt_oss(*, experts: int, layers: int) -> dict[str, Any]:
    return {
        "intermediate_size": 2880, "num_local_experts": experts, "num_experts_per_tok": 4,
        "quantization_config": {"quant_method": "mxfp4"},
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
    }  # fmt: skip


CI = "vLLM's test_acceptance_length.py, MT-Bench"
ROWS = (
    Row(title="Llama-3.1-8B,EAGLE-3", draft="yuhuili_llama31_8b",
        missing=LLAMA_8B,
        published={"2.79(K=3)": "vllm#20780, MT-Bench", "3.54(K=7)": "vllm#20780, MT-Bench"}),
    Row(title="Qwen3-8B,EAGLE-3", draft="redhat_qwen3_8b", missing=QWEN_8B,
        published={"2.26(K=3)": CI}),
    Row(title="Qwen3-8B,DFlash", draft="zlab_qwen3_8b", missing=QWEN_8B,
        published={"4.24(K=15)": "arXiv 2602.06036, MT-Bench"}),
    Row(title="gpt-oss-20b,EAGLE-3", draft="redhat_gpt_oss_20b",
        missing=gpt_oss(experts=32, layers=24), published={"2.56(K=3)": CI}),
    Row(title="gpt-oss-120b,post-norm", draft="specdrift_gpt_oss_120b",
        missing=gpt_oss(experts=128, layers=36), published={"2.41(K=3)": "model card, MT-Bench"}),
    Row(title="Qwen3.5-4B,DFlash", draft="zlab_qwen3_5_4b", target="qwen3_5_4b",
        weights_gib=7.83349609375, published={"5.60(K=15)": "vllm#49730, GSM8K"}),
    Row(title="Qwen3.6-27B,DFlash", draft="zlab_qwen3_6_27b", target="qwen3_6_27b",
        weights_gib=GIB_27B, published={}),
    Row(title="Qwen3.6-27B,EAGLE-3", draft="ex0bit_qwen3_6_27b", target="qwen3_6_27b",
        weights_gib=GIB_27B, published={"2.2-2.4": "model card"}),
)  # fmt: skip


def target_of(row: Row, draft: Published) -> dict[str, Any]:
    if row.target:
        return config(row.target)
    return draft.target | {"hidden_act": "silu"} | (row.missing or {})


def pairs_of(row: Row, draft: Published, gib: int, folder: Path) -> Iterator[tuple[Plan | None, Pair]]:
    """For each K: the plan of a hybrid target, and the sizes that a step's time follows from."""
    config = target_of(row, draft)
    target, there = folder / "target.json", folder / draft.slug
    target.write_text(json.dumps(config), encoding="utf-8")
    there.mkdir(exist_ok=True)
    name = str(materialise(draft, there))
    if row.target is None:
        read = read_draft(name, config, kv_bytes=2, tp=1)
        yield from [(None, pair_of(read, draft, config, layers_of(config)))] * len(KS)
        return
    request = PlanRequest(
        target=str(target), draft=name, gpu_mem=gib, platform="cuda:h100", max_model_len=CONTEXT,
        weights_gib=row.weights_gib, prefix_caching=False,
    )  # fmt: skip
    for plan in run_plans(request, KS):
        yield plan, pair_of(plan.draft, draft, config, [plan.target.attention], plan.target.recurrent)


def layers_of(text: dict[str, Any]) -> list[Attention]:
    """The layers of a target without recurrent state."""
    kinds = Counter(text.get("layer_types") or ["full_attention"] * text["num_hidden_layers"])
    return [
        Attention(
            layers=count, kv_heads=text["num_key_value_heads"], head_dim=head_dim(text),
            window=text["sliding_window"] if kind == "sliding_attention" else None,
        )
        for kind, count in kinds.items()
    ]  # fmt: skip


def figures(row: Row, draft: Published, folder: Path) -> Iterator[dict[str, Any]]:
    """For each GPU and K: needed length by requests; null where they do not fit."""
    for gpu in GPUS.values():
        for k, (plan, pair) in zip(KS, pairs_of(row, draft, gpu.gib, folder), strict=True):
            scheme, times = plan.auto if plan else "dense", Modelled(pair, gpu)
            needed = {}
            for n in REQUESTS:
                load = Load(n, CONTEXT, 0)
                ratio = times.seconds(scheme, k, load) / times.seconds("none", 0, load)
                fits = plan is None or plan.taken.fit(plan.budget) >= n
                needed[n] = round(ratio, 3) if fits else None
            yield {"gpu": gpu.name, "k": k, "scheme": scheme, "needed": needed}


def find() -> list[dict[str, Any]]:
    drafts = {draft.slug: draft for draft in published()}
    pairs = []
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            cells = list(figures(row, drafts[row.draft], Path(folder)))
        pair = {"pair": row.title, "draft": drafts[row.draft].checkpoint, "published": row.published}
        pairs.append({**pair, "cells": cells})
    return pairs


def main() -> None:
    pairs = find()
    written = {"command": "python -m benchmarks.break_even", "context": CONTEXT, "pairs": pairs}
    RESULT.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(pairs))


if __name__ == "__main__":
    main()
