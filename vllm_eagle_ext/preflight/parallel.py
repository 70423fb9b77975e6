# SPDX-License-Identifier: Apache-2.0
"""Refuses the ways to spread an engine over devices that a supported draft cannot follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from vllm_eagle_ext.checkpoint import Case, DraftSpec
from vllm_eagle_ext.checkpoint.families.registry import methods
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

_WHY = {
    "v1": "on vLLM's V1 runner: only the last stage has the drafter, the first one fails for want of it "
    "once the weights are loaded, and no stage hands on the states that the draft reads",
    "v2": "that has no embeddings of its own: on vLLM's V2 runner the last stage, which drafts, has "
    "none to share, and fails once the weights are loaded",
}


def check_pipeline(stages: int, spec: DraftSpec, runner: Literal["v1", "v2"]) -> None:
    """Refuse pipeline stages that the runner cannot draft after.

    What V2 needs of the target, only the target's layers tell, so that V2 may still fail.

    Args:
        stages: pipeline parallel size.

    Raises:
        SpeculativeConfigError: there are several stages, and the runner would fail.
    """
    if stages == 1:
        return
    if runner == "v2" and spec.embeddings == "own":
        logger.warning(
            "pipeline_parallel_size is %s: vLLM's V2 runner drafts for targets whose layers hand on the "
            "states that a draft reads, and raises for others. Not run with this package.",
            stages,
        )
        return
    raise SpeculativeConfigError(
        field="pipeline_parallel_size",
        value=stages,
        allowed=f"1 with an {' or '.join(methods())} draft {_WHY[runner]}",
        remedy="spread the target by --tensor-parallel-size, or serve it without a draft",
    )


def check_ranks(
    ranks: int, text: Mapping[str, Any], case: Case | None, draft_ranks: object = None
) -> None:
    """Refuse a tensor parallel size that divides not everything it has to.

    vLLM checks only the query heads before it starts its workers; the layers assert the rest. A draft's
    layers are built on the target's ranks, whatever `draft_tensor_parallel_size` says.

    Args:
        ranks: tensor parallel size.
        text: config of the target's language model.
        case: a supported draft; None: only the target is looked at.
        draft_ranks: `draft_tensor_parallel_size`, as asked for.

    Raises:
        SpeculativeConfigError: heads or widths that so many ranks cannot share.
    """
    if draft_ranks is not None and (type(draft_ranks) is not int or draft_ranks not in (1, ranks)):
        raise SpeculativeConfigError(
            field="speculative_config.draft_tensor_parallel_size", value=draft_ranks,
            allowed=" or ".join(map(str, sorted({1, ranks}))),
            remedy="leave the key out: vLLM builds the draft on the target's ranks",
        )  # fmt: skip
    uneven = list(_uneven(ranks, _of_target(text), "the target"))
    if case is not None:
        uneven += _uneven(ranks, _of_draft(case), "the draft")
    if uneven:
        raise SpeculativeConfigError(
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
    if case.spec.served_by.backbone.has_kv_heads:
        yield "num_key_value_heads", heads.kv, True
    yield "intermediate_size", case.config.intermediate_size, False


def _uneven(ranks: int, parts: _Parts, owner: str) -> Iterator[str]:
    for name, number, is_repeated in parts:
        if number % ranks and not (is_repeated and ranks % number == 0):
            way = "a divisor or a multiple" if is_repeated else "a divisor"
            yield f"{way} of {number}, {name} of {owner}"
