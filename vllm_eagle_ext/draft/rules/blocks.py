# SPDX-License-Identifier: Apache-2.0
"""Rules about drafts that fill in a block: DFlash, and P-EAGLE where it has the same parts."""

from __future__ import annotations

from vllm_eagle_ext.draft.findings import (
    AS_TRAINED,
    Problem,
    Problems,
    Severity,
    contradictions,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.spec import Case


@rule(Severity.ERROR, can_run=True, of="block")
def k_is_within_the_block(case: Case) -> Problems:
    """K is below the block size; DSpark may equal it.

    The first position of a block holds the last sampled token, unless the draft samples from it.
    """
    most, k = case.spec.most_drafted, case.request.k
    anchor = (
        "" if case.spec.samples_anchor else ", of which the first position holds the last sampled token"
    )
    if most is not None and k is not None and k > most:
        yield Problem(
            field="num_speculative_tokens",
            value=k,
            allowed=f"up to {most}: the draft was trained on blocks of {case.spec.block_size}{anchor}",
            remedy=f'write "num_speculative_tokens": {most} or less',
        )


@rule(Severity.WARNING, of="block")
def block_size_is_stated(case: Case) -> Problems:
    """`block_size` is stated."""
    if case.spec.block_size is None:
        yield key_problem(
            "block_size",
            None,
            allowed="the size of the trained block, which bounds num_speculative_tokens"
            + ("" if case.spec.samples_anchor else " to one less"),
            remedy="ask the publisher; 7, 8 and 16 are usual",
        )


@rule(Severity.ERROR, of="block")
def block_size_is_consistent(case: Case) -> Problems:
    """`block_size` has one value everywhere, at least 2."""
    config = case.config
    places = {
        "at top level": config.block_size,
        "in dflash_config": config.block_config.block_size,
        "as dspark_block_size": config.dspark_block_size,
    }
    yield from contradictions(places, "the same value everywhere", key="block_size")
    if case.spec.block_size == 1:
        yield key_problem(
            "block_size", 1, allowed="at least 2",
            remedy=AS_TRAINED,
        )  # fmt: skip


@rule(Severity.ERROR, of="parallel")
def mask_token_is_in_the_vocabulary(case: Case) -> Problems:
    """`mask_token_id` is stated and in the vocabulary."""
    token, size = case.spec.mask_token_id, case.target.rows
    if case.spec.embeddings == "own":
        size = case.target.vocab_size
    if case.spec.family.widens_inputs and case.spec.embeddings == "own":
        size = max(size, case.config.vocab_size)
    if token is None or not 0 <= token < size:
        omits = case.spec.family.omits_mask_token and case.spec.format == "published"
        yield key_problem(
            "mask_token_id",
            token,
            allowed=f"a token id from 0 to {size - 1}",
            remedy="SpecForge leaves it out: add the id that the draft was trained with, which is the "
            "tokenizer's mask token, else the first id that the tokenizer does not use, else its "
            "padding token"
            if token is None and omits
            else AS_TRAINED,
        )


@rule(Severity.ERROR, of="block")
def mask_token_is_unambiguous(case: Case) -> Problems:
    """`mask_token_id` has one value everywhere."""
    config = case.config
    places = {
        "mask_token_id at top level": config.mask_token_id,
        "mask_token_id in dflash_config": config.block_config.mask_token_id,
        "dspark_noise_token_id": config.dspark_noise_token_id,
    }
    yield from contradictions(places, "the same token everywhere")


@rule(Severity.ERROR, of="dflash")
def anchor_is_not_sampled(case: Case) -> Problems:
    """DFlash: `sample_from_anchor` is unset."""
    if case.config.sample_from_anchor or case.config.block_config.sample_from_anchor:
        yield key_problem(
            "sample_from_anchor",
            True,
            allowed="false: vLLM's DFlash drafter takes its tokens from the masked positions only",
            remedy="use a draft that was trained without it",
        )


@rule(Severity.ERROR, of="block")
def dflash_reads_aux_states(case: Case) -> Problems:
    """`use_aux_hidden_state` is not false."""
    flags = (case.config.use_aux_hidden_state, case.config.block_config.use_aux_hidden_state)
    if False in flags:
        yield key_problem(
            "use_aux_hidden_state",
            False,
            allowed=f"true: a {case.spec.title} draft is conditioned only on aux states",
            remedy="if it has an fc, remove the key from config.json; otherwise use another draft: no "
            "drafter of vLLM computes this one",
        )


@rule(Severity.WARNING, of="block")
def final_state_is_not_normed(case: Case) -> Problems:
    """No aux layer is the target's final state. Some trainers take it normalised."""
    n = case.target.num_layers
    if n in case.spec.aux_layers.layer_ids:
        yield Problem(
            field="last aux layer of the draft",
            value=n,
            allowed="the output of the last layer as vLLM captures it, before the target's final norm; "
            "a draft that was trained on the normalised state accepts less",
            remedy="if acceptance is low, ask the publisher where the last state was taken",
        )


@rule(Severity.WARNING, of="parallel_drafting")
def parallel_drafting_is_asked_for(case: Case) -> Problems:
    """P-EAGLE needs `parallel_drafting`."""
    if case.request.parallel_drafting is False:
        yield Problem(
            field="speculative_config.parallel_drafting",
            value=None,
            allowed="true: the draft was trained to fill in all tokens in one pass",
            remedy='write "parallel_drafting": true',
        )


@rule(Severity.WARNING, of="block")
def embedding_scale_is_stated(case: Case) -> Problems:
    """`input_embedding_scale` exists for Gemma, Granite, MiniCPM.

    vLLM shares the target's table, and multiplies only in the target's class. z-lab, for one, trains on
    what that class returns; speculators trains on the rows of the table.
    """
    scale, spec, config = case.target.embedding_scale, case.spec, case.config
    key = "input_embedding_scale"
    scales = (config.block_config.input_embedding_scale, config.input_embedding_scale)
    if scale == 1 or spec.embeddings != "shared" or spec.format == "speculators" or any(scales):
        return
    if key in spec.family.own_keys:
        remedy = (
            f'if the draft was trained after the target\'s embedding layer, write "{key}": {scale:.8g} '
            "into dflash_config; `vllm-eagle verify` with and without it says which one drafts better"
        )
    else:
        remedy = (
            f"vLLM's class for {spec.title} drafts has no factor: if `vllm-eagle verify` finds hardly "
            "any token accepted, use a draft that brings embeddings of its own"
        )
    yield key_problem(
        key,
        None,
        allowed="the factor that it was trained with: the target multiplies its embeddings by "
        f"{scale:.8g}, and the draft is given them without",
        remedy=remedy,
    )
