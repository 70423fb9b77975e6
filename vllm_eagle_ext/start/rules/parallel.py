# SPDX-License-Identifier: Apache-2.0
"""Rules about how an engine is spread over devices, which a draft has to follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.draft.registry import methods
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.start.rules.vllm_config import runner_of, text_of

_WHY = {
    "v1": "on vLLM's V1 runner: only the last stage has the drafter, the first one fails without it "
    "once the weights are loaded, and no stage hands on the states that the draft reads",
    "v2": "that has no embeddings of its own: on vLLM's V2 runner the last stage, which drafts, has "
    "none to share, and fails once the weights are loaded",
}


@rule(Severity.ERROR, error=SpeculativeConfigError)
def pipeline_stages_can_draft(case: Case, config: Any) -> Problems:
    """There is one pipeline stage, or on V2 a draft with its own embeddings."""
    stages, runner = config.parallel_config.pipeline_parallel_size, runner_of(config)
    if stages == 1 or (runner == "v2" and case.spec.embeddings == "own"):
        return
    yield Problem(
        field="pipeline_parallel_size",
        value=stages,
        allowed=f"1 with an {' or '.join(methods())} draft {_WHY[runner]}",
        remedy="spread the target by --tensor-parallel-size, or serve it without a draft",
    )


@rule(Severity.ERROR, error=SpeculativeConfigError)
def ranks_share_evenly(case: Case, config: Any) -> Problems:
    """The tensor parallel size divides heads and widths.

    vLLM checks only the query heads before it starts its workers; the layers assert the rest. Only
    DSpark reads `draft_tensor_parallel_size`; other drafts are built on the target's ranks.
    """
    ranks = config.parallel_config.tensor_parallel_size
    reads_it = case.spec.drafter.method == "dspark"
    of_draft = (
        config.speculative_config.draft_parallel_config.tensor_parallel_size if reads_it else ranks
    )
    uneven = [
        *_uneven(ranks, _of_target(text_of(config)), "the target"),
        *_uneven(of_draft, _of_draft(case), "the draft"),
    ]
    if uneven:
        yield Problem(
            field="tensor_parallel_size",
            value=ranks,
            allowed="; ".join(uneven),
            remedy="choose such a --tensor-parallel-size",
        )


# name, number, and whether fewer of them than ranks are repeated
_Parts = Iterator[tuple[str, int, bool]]


def _of_target(text: Mapping[str, Any]) -> _Parts:
    kinds = ["num_attention_heads", "linear_num_key_heads", "linear_num_value_heads"]
    if not text.get("kv_lora_rank"):  # latent attention has no such heads in its cache
        kinds.append("num_key_value_heads")
    for kind in kinds:
        number = text.get(kind)
        if type(number) is int and number > 0:
            yield kind, number, kind == "num_key_value_heads"


def _of_draft(case: Case) -> _Parts:
    heads = case.spec.heads
    yield "num_attention_heads", heads.query, False
    if case.spec.drafter.backbone.has_kv_heads:
        yield "num_key_value_heads", heads.kv, True
    yield "intermediate_size", case.config.intermediate_size, False


def _uneven(ranks: int, parts: _Parts, owner: str) -> Iterator[str]:
    for name, number, is_repeated in parts:
        if number % ranks and not (is_repeated and ranks % number == 0):
            way = "a divisor or a multiple" if is_repeated else "a divisor"
            yield f"{way} of {number}, {name} of {owner}"
