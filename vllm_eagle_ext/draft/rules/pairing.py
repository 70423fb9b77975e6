# SPDX-License-Identifier: Apache-2.0
"""Rules about draft and target."""

from __future__ import annotations

from vllm_eagle_ext.draft.findings import (
    AS_TRAINED,
    ITS_TARGET,
    Problem,
    Problems,
    Severity,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.vocabulary import count_tokens

# Four times the most of any published draft. A row of 128 bfloat16 numbers for each makes 1 GiB.
MOST_POSITIONS = 2**22


@rule(Severity.ERROR)
def target_width_fits(case: Case) -> Problems:
    """The draft reads the target's width. Without `target_hidden_size` it is the draft's own."""
    key = "target_hidden_size"
    size = case.config.target_hidden_size
    # The speculators format writes null for "the target's".
    value = case.spec.hidden_size if size is None else size
    if not case.spec.fuses_aux_states and value == case.target.hidden_size:
        size, value = None, case.spec.hidden_size  # it takes the target's last state as it is
    if value == case.target.hidden_size or (size is None and _fc_is_of_the_targets_width(case)):
        return
    norm = case.files.tensors.get("norm.weight")
    remedy = ITS_TARGET
    if size is None and norm is not None and norm.shape != (case.spec.hidden_size,):
        width = norm.shape[-1] if norm.shape else 1
        remedy = f'its weights have another width: edit config.json: "hidden_size": {width}'
    yield Problem(
        field=f"{'hidden_size' if size is None else key} of the draft {case.spec.model!r}",
        value=value,
        allowed=f"{case.target.hidden_size}, the target's hidden size",
        remedy=remedy,
    )


def _fc_is_of_the_targets_width(case: Case) -> bool:
    fc = case.files.tensors.get("fc.weight")
    columns = len(case.spec.aux_layers.layer_ids) * case.target.hidden_size
    return fc is not None and columns > 0 and fc.shape == (case.spec.hidden_size, columns)


@rule(Severity.ERROR, can_run=True)
def target_depth_fits(case: Case) -> Problems:
    """`num_target_layers` is the target's depth, or TorchSpec's count of aux layers."""
    n, captured = case.target.num_layers, len(case.spec.aux_layers.layer_ids)
    for key, allowed in (("num_target_layers", (n, captured)), ("target_num_hidden_layers", (n,))):
        depth = getattr(case.config, key)
        if depth is not None and depth not in allowed:
            yield key_problem(
                key,
                depth,
                allowed=f"{n}, the target's number of layers",
                remedy=ITS_TARGET,
            )


# Tables are padded to a multiple of up to so many rows, where no tokenizer tells.
_MOST_PADDING = 1024


def _is_padding(case: Case) -> bool:
    """Say whether the target's rows after the draft's vocabulary are of no token."""
    tokens = count_tokens(case.target.folder)
    if tokens is None:
        return case.target.padding <= _MOST_PADDING
    return tokens <= case.target.vocab_size


@rule(Severity.ERROR, can_run=True)
def narrow_vocabulary_is_padded(case: Case) -> Problems:
    """A `vocab_size` below the rows of the target's tables leaves out only padding."""
    known, tokens = case.target.vocab_size, count_tokens(case.target.folder)
    if not case.target.padding or _is_padding(case):
        return
    allowed = f"{case.target.rows}, the target's, or less where the rest of its rows are padding"
    if tokens is not None:
        allowed += f": its tokenizer has {tokens} ids"
        remedy = f"use a draft that was trained for this target: not all of its tokens are below {known}"
    else:
        remedy = (
            "name a folder of the target with its tokenizer.json, which tells; if its ids end below "
            f'{known}, {{"eagle_ext": {{"strict": false}}}} serves the draft'
        )
    yield key_problem("vocab_size", known, allowed=allowed, remedy=remedy)


@rule(Severity.WARNING)
def padding_is_the_targets(case: Case) -> Problems:
    """The target has no padding, or the draft shares its tables."""
    # A rule refuses other padding, and that of a second head.
    refused = case.spec.drafter.uses_vllm_class and not case.is_reduced
    is_told = case.target.padding > 0 and not refused and _is_padding(case)
    if is_told and (case.spec.head, case.spec.embeddings) != ("shared", "shared"):
        yield key_problem(
            "vocab_size",
            case.target.vocab_size,
            allowed=f"{case.target.rows}, the target's; its last {case.target.padding} rows are taken "
            "for padding, of which the draft proposes none",
            remedy="if acceptance is low, check that the draft was trained for this target",
        )


@rule(Severity.ERROR, of="eagle3")
def eagle3_is_causal(case: Case) -> Problems:
    """`is_causal` is not false. vLLM's layer would attend to rows that are not there yet."""
    if case.config.is_causal is False:
        yield key_problem(
            "is_causal",
            False,
            allowed="true, or no such key: an EAGLE-3 draft is autoregressive",
            remedy="if the key came from another config, remove it; otherwise use another draft: no "
            "drafter of vLLM computes this one",
        )


@rule(Severity.WARNING)
def rope_is_stated(case: Case) -> Problems:
    """`rope_theta` is stated."""
    if case.spec.rope.theta is None:
        theta = case.spec.drafter.backbone.rope_theta
        yield key_problem(
            "rope_theta",
            None,
            allowed=f"the value it was trained with; {theta} is taken, the default of its model type",
            remedy="if acceptance is low, ask the publisher and state it in config.json",
        )


@rule(Severity.ERROR)
def rope_table_is_bounded(case: Case) -> Problems:
    """Positions are at most 2^22, or the target's. vLLM's rope has a row for each."""
    lengths = (MOST_POSITIONS, case.target.max_position_embeddings, case.request.max_model_len)
    most = max(length for length in lengths if length is not None)
    rows = case.spec.rope.rows(case.config.max_position_embeddings)
    width = case.config.qk_rope_head_dim or case.spec.heads.dim * case.spec.rope.partial
    for key, length in rows.items():
        if length > most:
            yield key_problem(
                key,
                length,
                allowed=f"up to {most} positions: vLLM reserves a row of its rope cache for each, here "
                f"{length * width * 2 / 2**30:.3g} GiB",
                remedy="state the positions that the draft was trained with, or those of the target",
            )
            return


@rule(Severity.ERROR)
def rope_table_holds_drafted_texts(case: Case) -> Problems:
    """vLLM's rope table reaches as far as it drafts."""
    request, rope, table = case.request, case.spec.rope, case.rope_table
    if table is None or (served := request.max_model_len) is None:
        return
    # V1 stops at the length that vLLM derives for the draft, and V2 of 0.33 serves no more.
    length = case.config.max_position_embeddings or served
    if rope.kind == "dynamic":
        length = int(length * (rope.factor or 1))
    has_window = case.spec.draft_window is not None
    is_v2 = request.before_033 and request.runner != "v1"
    if table >= (served if has_window or is_v2 else min(served, length)):
        return
    others = ", or leave the option draft_window out" * has_window
    others += ", or set VLLM_USE_V2_MODEL_RUNNER=0" * is_v2
    yield Problem(
        field="max_model_len", value=served,
        allowed=f"up to {table}: there vLLM's table of the {rope.kind} rope ends, and longer texts fail",
        remedy=f"lower --max-model-len to {table}" + others * (length <= table and has_window != is_v2),
    )  # fmt: skip


@rule(Severity.WARNING)
def rope_matches_the_target(case: Case) -> Problems:
    """The rope is the target's. Some drafts are trained with another; most are not."""
    draft, target = case.spec.rope, case.target.rope
    if draft.theta is None or target.theta is None:
        return
    if (draft.theta, draft.kind, draft.factor) != (target.theta, target.kind, target.factor):
        yield Problem(
            field="rope of the draft",
            value=str(draft),
            allowed=f"what it was trained with; the target has {target}",
            remedy="if acceptance is low, above all in long contexts, ask the publisher",
        )


@rule(Severity.WARNING)
def trainer_rotates_the_same_part(case: Case) -> Problems:
    """A speculators draft has no `partial_rotary_factor` below 1. Its trainer ignores the key."""
    partial = case.spec.rope.partial
    if case.spec.format == "speculators" and partial < 1:
        yield key_problem(
            "partial_rotary_factor",
            partial,
            allowed="1, if speculators trained the draft: its forward rotates all channels of a head "
            f"whatever config.json says, and engines rotate {partial:g} of them, as it says",
            remedy="set partial_rotary_factor to 1.0 in config.json, compare the acceptance of both "
            "values with `vllm-eagle verify`, and keep the better one",
        )


@rule(Severity.ERROR)
def heads_divide(case: Case) -> Problems:
    """`num_key_value_heads` divides `num_attention_heads`."""
    heads = case.spec.heads
    if heads.query % heads.kv:
        yield key_problem(
            "num_key_value_heads",
            heads.kv,
            allowed=f"a divisor of num_attention_heads, {heads.query}",
            remedy=AS_TRAINED,
        )


@rule(Severity.ERROR)
def windows_are_stated(case: Case) -> Problems:
    """Sliding layers have a `sliding_window`."""
    types = case.config.layer_types
    slides = [kind == "sliding_attention" for kind in types or ()]
    windows = [layer.window for layer in case.spec.layers]
    forced = case.spec.family.asks_for_windows(case.config)
    if (any(slides) or forced) and not any(windows):
        yield key_problem(
            "sliding_window",
            None,
            allowed="a positive integer, because layers of the draft slide",
            remedy="state the window that it was trained with, or, if its layers attend to all tokens, "
            'write "full_attention" for each in layer_types',
        )
