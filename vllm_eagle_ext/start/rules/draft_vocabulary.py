# SPDX-License-Identifier: Apache-2.0
"""Rules about the option `draft_vocabulary`: whether rows of a whole head can be kept, and followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.draft.quantisation import quantised_weights
from vllm_eagle_ext.draft.vocabulary import OPTION
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.options import Options

_ROWS = 64  # vLLM pads a head to a multiple
_QUANTISED_COPY = "draft_lm_head_quantization"  # vLLM's, since 0.33
# They load whole modules, and end with what this package follows; others write into weights.
FOLLOWED_TRANSFERS = ("nccl", "ipc")


@rule(Severity.ERROR, error=OptionsError)
def rows_can_be_kept(case: Case, config: Any) -> Problems:
    """`draft_vocabulary` needs a head of plain rows, and ids of the target's."""
    path, ids, size = case.request.options.draft_vocabulary, case.spec.kept_ids, case.target.vocab_size
    if ids is None:
        return
    for reason in (*obstacles(case), *_obstacles_of_engine(case, config)):
        yield Problem(field=OPTION, value=path, allowed=reason, remedy="leave the option out")
    ranks = config.parallel_config.tensor_parallel_size
    least, padded = _ROWS * ranks, -(-len(ids) // _ROWS) * _ROWS
    if padded % ranks:
        yield Problem(
            field=f"length of {OPTION}",
            value=len(ids),
            allowed=f"a multiple of {least}, since {ranks} ranks share rows in steps of {_ROWS}",
            remedy="write the file with other --entries",
        )
    if not least <= len(ids) < size or ids[-1] >= size:
        yield Problem(
            field=f"length and last id of {OPTION}",
            value=(len(ids), ids[-1]),
            allowed=f"{least} ids ({_ROWS} on each rank) to {size - 1}, none above {size - 1}",
            remedy="write the file for this target with `vllm-eagle vocabulary`",
        )


def obstacles(case: Case) -> Iterator[str]:
    """Say what is allowed in place of what keeps this draft's head from being reduced."""
    spec = case.spec
    if spec.drafter.uses_vllm_class:
        yield f"EAGLE-3 and DFlash drafts: {spec.title} drafts run in classes of vLLM's"
    elif case.is_reduced:
        size = f"{spec.vocabulary.size} of {case.target.vocab_size}"
        yield f"a draft with a whole vocabulary: this one has {size} tokens"
    if "lm_head" in quantised_weights(case.files.tensors):
        yield "a draft whose own head is plain: this one's is quantised, and has no rows to keep"


def _obstacles_of_engine(case: Case, config: Any) -> Iterator[str]:
    if case.spec.head == "own" or case.spec.drafter.uses_vllm_class:
        return
    if quantises_head(config):
        yield "a target with a plain head: this one's, which the draft reads, is quantised"
    if getattr(config.speculative_config, _QUANTISED_COPY, None) is not None:
        yield f"one of this option and {_QUANTISED_COPY}, which puts a quantised head in its place"
    transfer = getattr(config.weight_transfer_config, "backend", None)
    if transfer not in (None, *FOLLOWED_TRANSFERS):
        followed = f"weight transfer by {' or '.join(FOLLOWED_TRANSFERS)}"
        yield f"{followed}: after one by {transfer} the kept rows would be the old ones"


@rule(Severity.ERROR, error=OptionsError)
def draft_options_are_followed(config: Any, options: Options, case: Case | None = None) -> Problems:
    """`draft_vocabulary` and `draft_window` need a draft that this package serves."""
    speculative = config.speculative_config
    names = ("draft_vocabulary", "draft_window") if speculative else ("draft_vocabulary",)
    for name in names:
        if case is None and (value := getattr(options, name)) is not None:
            yield Problem(
                field=f"additional_config.eagle_ext.{name}",
                value=value,
                allowed="no value without a draft that this package serves",
                remedy="leave the option out, or name a draft that `vllm-eagle check` approves",
            )


def quantises_head(config: Any) -> bool:
    """Ask vLLM's quantisation of the target how it makes a head; the load asks the module again."""
    from torch.nn import Module
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        UnquantizedEmbeddingMethod,
    )

    head = ParallelLMHead.__new__(ParallelLMHead)
    Module.__init__(head)
    method = None
    with suppress(Exception):
        method = config.quant_config and config.quant_config.get_quant_method(head, "lm_head")
    return not isinstance(method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod | None)
