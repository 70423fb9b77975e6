# SPDX-License-Identifier: Apache-2.0
"""Rules about what corrects the logits of a block: DFlash2's selector, DSpark's Markov and confidence
heads; and
about their files, as vLLM's own classes load these, and convert and refuse nothing."""

from __future__ import annotations

from vllm_eagle_ext.draft.draft_config import ProposalHeads
from vllm_eagle_ext.draft.findings import (
    AS_TRAINED,
    Problem,
    Problems,
    Severity,
    contradictions,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.foreign_drafts import name_edit
from vllm_eagle_ext.draft.quantisation import quantised_weights
from vllm_eagle_ext.draft.rules.vocabulary import is_widened
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.tensors import COMPUTED

SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
CONFIDENCE = "confidence_head.proj"
# What vLLM's classes rename by themselves.
_RENAMED = ("midlayer.", "encoder.")
_SHOWN = 5  # names of tensors in a message
_MARKOV, _GATHERED = "markov_head.markov_w2", "W4A16_NVFP4"


@rule(Severity.ERROR, of="second head")
def heads_are_unambiguous(case: Case) -> Problems:
    """DFlash2, DSpark: the second head's sizes agree. vLLM's classes read one place each."""
    for key in ProposalHeads.model_fields:
        yield from contradictions(case.config.heads_stated(key), "the same value everywhere")


@rule(Severity.ERROR, of="dflash2")
def selector_is_stated(case: Case) -> Problems:
    """DFlash2: the selector's sizes exist; the group divides the width."""
    width = case.spec.hidden_size
    for key in SELECTOR:
        if case.config.of_heads(key) is None:
            yield key_problem(
                key, None,
                allowed="a positive integer, in dflash_config", remedy=AS_TRAINED,
            )  # fmt: skip
    group = case.config.of_heads("conv_group_size")
    if group and width % group:
        yield key_problem(
            "conv_group_size", group,
            allowed=f"a divisor of hidden_size, {width}", remedy=AS_TRAINED,
        )  # fmt: skip
    most = case.config.of_heads("selector_top_k")
    if most and most > case.target.vocab_size:
        yield key_problem(
            "selector_top_k", most,
            allowed=f"at most {case.target.vocab_size}, the target's vocabulary", remedy=AS_TRAINED,
        )  # fmt: skip


@rule(Severity.ERROR, of="second head")
def target_is_not_padded(case: Case) -> Problems:
    """DFlash2, DSpark: the target has no padding, or the vocabulary is reduced."""
    if case.target.padding and not case.is_reduced:
        yield key_problem(
            "vocab_size",
            case.target.vocab_size,
            allowed=f"{case.target.rows}, the rows of the target's tables: vLLM's class of "
            f"{case.spec.title} drafts knows no padding",
            remedy="use a draft of another kind, or one that was trained with all of these rows",
        )


@rule(Severity.ERROR, of="dflash2")
def selector_knows_every_token(case: Case) -> Problems:
    """DFlash2: the vocabulary is whole. Codebooks are read without `d2t`."""
    if case.is_reduced:
        yield key_problem(
            "draft_vocab_size",
            case.spec.vocabulary.size,
            allowed=f"{case.target.vocab_size}, the target's vocabulary: vLLM's selector takes draft "
            "ids for target ids",
            remedy="use a draft with the whole vocabulary",
        )


@rule(Severity.ERROR, of="dspark")
def markov_head_is_computed(case: Case) -> Problems:
    """DSpark: `markov_rank` exists; the head is vanilla."""
    rank, kind = case.config.of_heads("markov_rank"), case.config.of_heads("markov_head_type")
    if not rank:
        yield key_problem(
            "markov_rank", rank,
            allowed="a positive integer: a draft without a Markov head is a DFlash draft, whose "
            'architecture is "DFlashDraftModel"',
            remedy=f"{AS_TRAINED}; without such a head, {name_edit('DFlashDraftModel')}",
        )  # fmt: skip
    if kind not in (None, "vanilla"):
        yield key_problem(
            "markov_head_type", kind,
            allowed='"vanilla": vLLM\'s class computes no other and does not read the key',
            remedy="use another draft",
        )  # fmt: skip


@rule(Severity.ERROR, of="dspark")
def markov_candidates_are_plain(case: Case) -> Problems:
    """DSpark: `dspark_draft_topk` needs a plain `markov_w2`."""
    most = case.config.dspark_draft_topk
    quantised = _MARKOV in quantised_weights(case.files.tensors)
    config = case.config.quantization_config or {}
    nested = config.get("quantization")
    algorithm = (nested if isinstance(nested, dict) else config).get("quant_algo")
    if most is not None and quantised and algorithm != _GATHERED:
        yield key_problem(
            "dspark_draft_topk", most,
            allowed=f"none with a quantised {_MARKOV} but ModelOpt's {_GATHERED}: vLLM reads "
            "single rows of it",
            remedy="remove the key, or use a draft in which this weight is plain",
        )  # fmt: skip


@rule(Severity.ERROR, of="dspark")
def confidence_head_is_whole(case: Case) -> Problems:
    """DSpark: the confidence head has both tensors, or neither."""
    parts = [f"{CONFIDENCE}.{part}" for part in ("weight", "bias")]
    missing = [name for name in parts if name not in case.files.tensors]
    if case.config.of_heads("enable_confidence_head") and case.has_tensors and len(missing) == 1:
        yield Problem(
            field="confidence head of the draft", value=f"without {missing[0]}",
            allowed="weight and bias, or neither", remedy="download all files of the draft",
        )  # fmt: skip


@rule(Severity.ERROR, of="dspark")
def anchor_is_unambiguous(case: Case) -> Problems:
    """DSpark: `sample_from_anchor` and `dspark_bonus_anchor` agree."""
    config = case.config
    bonus = config.dspark_bonus_anchor
    places = {
        "sample_from_anchor at top level": config.sample_from_anchor,
        "sample_from_anchor in dflash_config": config.block_config.sample_from_anchor,
        "dspark_bonus_anchor, its opposite,": None if bonus is None else not bonus,
    }
    yield from contradictions(places, "one meaning")


@rule(Severity.WARNING, of="dspark")
def vocabulary_is_widened(case: Case) -> Problems:
    """DSpark: no embeddings exceed the target's tokens."""
    if is_widened(case):
        yield key_problem(
            "vocab_size",
            case.config.vocab_size,
            allowed=f"{case.target.vocab_size}, the target's, or more if the rows after are padding or "
            "a mask token: the target never accepts such an id",
            remedy="if the target is not the one that it was trained for, serve it with that one",
        )


@rule(Severity.ERROR, of="second head")
def names_are_as_vllm_reads_them(case: Case) -> Problems:
    """DFlash2, DSpark: tensor names lack `model.`; a map is `d2t`."""
    wrong = [
        header.published
        for name, header in case.files.tensors.items()
        if header.published != name
        and not header.published.startswith(_RENAMED)
        and not name.endswith(COMPUTED)  # vLLM's loader leaves them out, whatever stands before them
    ]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        yield Problem(
            field="names of the draft's tensors",
            value=", ".join(wrong[:_SHOWN]) + more,
            allowed='names without "model.", and d2t for a map: vLLM\'s class loads no others',
            remedy="rename the tensors in a copy of the file",
        )


@rule(Severity.ERROR, of="second head")
def fc_is_in_the_order_of_the_layers(case: Case) -> Problems:
    """DFlash2, DSpark: aux layer ids ascend."""
    layers = case.spec.aux_layers
    if layers.is_reordered:
        yield Problem(
            field="order of the draft's aux layers",
            value=list(layers.listed),
            allowed="ascending ids: vLLM hands over the states layer by layer, and its class for "
            f"{case.spec.title} drafts does not reorder fc",
            remedy="reorder the blocks of fc.weight and the ids in a copy; if the states were collected "
            'layer by layer, list the layers in ascending order: {"eagle_ext": {"aux_layers": [..]}}',
        )


@rule(Severity.ERROR, of="second head")
def d2t_is_as_vllm_reads_it(case: Case) -> Problems:
    """DFlash2, DSpark: `d2t` holds offsets; whole vocabularies omit it."""
    if "d2t" not in case.files.tensors:
        return
    if not case.is_reduced:
        value, allowed = "a map", "none, because the draft vocabulary is not reduced"
    elif case.spec.vocabulary.map_kind == "absolute":
        value, allowed = "target ids", "offsets, target id minus draft id"
    else:
        return
    yield Problem(
        field="d2t of the draft",
        value=value,
        allowed=f"{allowed}: vLLM's class for {case.spec.title} drafts does not convert it",
        remedy="convert it, or leave it out, in a copy of the file",
    )
