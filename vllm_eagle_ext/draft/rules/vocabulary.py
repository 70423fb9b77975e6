# SPDX-License-Identifier: Apache-2.0
"""Rules about vocabularies, embeddings and heads."""

from __future__ import annotations

from vllm_eagle_ext.draft.findings import (
    BELONGS,
    ITS_TARGET,
    Problem,
    Problems,
    Severity,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.read_spec import marked_ids, tensor_integers
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.vocabulary import ascends, compare_tokenizers, is_identity, target_ids


def is_widened(case: Case) -> bool:
    """Say whether the draft has rows of its own after those of the target's tokens, such as a mask's."""
    spec, size = case.spec, case.target.vocab_size
    has_head = spec.head == "own" or spec.vocabulary.size == size
    is_able = spec.family.widens_inputs and spec.embeddings == "own" and has_head
    return is_able and case.config.vocab_size > size


@rule(Severity.ERROR)
def draft_vocabulary_fits(case: Case) -> Problems:
    """`vocab_size` is the target's; `draft_vocab_size` is no larger."""
    if is_widened(case):
        return
    if case.config.vocab_size != case.target.vocab_size:
        yield key_problem(
            "vocab_size",
            case.config.vocab_size,
            allowed=f"{case.target.vocab_size}, the target's",
            remedy=_how_to_fit(case),
        )
    if case.spec.vocabulary.size > case.target.vocab_size:
        yield key_problem(
            "draft_vocab_size",
            case.spec.vocabulary.size,
            allowed=f"at most {case.target.vocab_size}, the target's vocabulary",
            remedy=ITS_TARGET,
        )


def _how_to_fit(case: Case) -> str:
    """Say what to do about another vocabulary, by the draft's own tables."""
    size, spec = case.target.vocab_size, case.spec
    edit = f'edit config.json: "vocab_size": {size}'
    if case.config.vocab_size < size:
        return f"its tables or its map are larger than that: {edit}, if they are of this target's size"
    if (spec.head, spec.embeddings) == ("shared", "shared") and "d2t" not in case.files.tensors:
        return f"if it was trained for this target, whose tables it shares, {edit}"
    return ITS_TARGET


@rule(Severity.ERROR)
def d2t_present_iff_reduced(case: Case) -> Problems:
    """Reduced vocabularies need `d2t`; whole ones allow only the identity.

    Without a map vLLM takes draft ids for target ids. For a whole vocabulary it has no place for one.
    """
    if not case.has_tensors:
        return
    # A reduced vocabulary needs a map.
    header = case.files.tensors.get("d2t")
    sizes = f"draft vocabulary {case.spec.vocabulary.size} of {case.target.vocab_size}"
    if case.is_reduced and header is None:
        yield Problem(
            field="d2t of the draft",
            value=None,
            allowed=f"a map, because the {sizes} is reduced",
            remedy=f"download all files of the draft, or {BELONGS}",
        )
    if case.is_reduced or header is None:
        return
    # A whole one may have the identity.
    d2t = tensor_integers(case.files, "d2t")
    tokens = header.shape[0] if len(header.shape) == 1 else 0
    if d2t and tokens == case.spec.vocabulary.size and is_identity(d2t):
        return
    other_size = tokens not in (0, case.spec.vocabulary.size)
    yield Problem(
        field="d2t of the draft",
        value=f"a map of {tokens} tokens" if other_size else "a map into another order of tokens",
        allowed=f"none, or zeros, because the {sizes} is not reduced",
        remedy=f'if lm_head has {tokens} rows, state "draft_vocab_size": {tokens} in config.json'
        if other_size
        else "export the draft with the rows of lm_head in the target's order, without d2t and t2d",
    )


@rule(Severity.ERROR)
def t2d_marks_a_whole_vocabulary(case: Case) -> Problems:
    """A whole vocabulary's `t2d` marks all or nothing. Some trainers never fill it in."""
    header, size = case.files.tensors.get("t2d"), case.target.vocab_size
    if header is None or case.is_reduced:
        return
    kept = marked_ids(case.files)
    if kept is None or header.shape != (size,) or len(kept) not in (0, size):
        marks = f"{len(kept)} target ids marked" if kept is not None else f"{header.dtype}"
        yield Problem(
            field="t2d of the draft",
            value=f"{marks}, of shape {header.shape}",
            allowed=f"none, or a mask of all {size} target ids, because the draft vocabulary is not "
            "reduced",
            remedy=BELONGS,
        )


@rule(Severity.ERROR)
def d2t_is_a_map(case: Case) -> Problems:
    """`d2t` gives different target ids. vLLM checks nothing: repeated ids leave logits out."""
    header, size = case.files.tensors.get("d2t"), case.spec.vocabulary.size
    if header is None or not case.is_reduced:
        return
    d2t = tensor_integers(case.files, "d2t")
    if not d2t or header.shape != (size,):
        value = f"{header.dtype} of shape {header.shape}"
        allowed = f"{size} integers, one per draft token"
    elif case.spec.vocabulary.map_kind is None:
        ids = target_ids(d2t, "offset")
        distinct = len(set(ids))
        value = f"offsets that give target ids {min(ids)} to {max(ids)}, {distinct} of them distinct"
        allowed = f"{len(d2t)} different target ids from 0 to {case.target.vocab_size - 1}"
    else:
        return
    yield Problem(
        field="d2t of the draft",
        value=value,
        allowed=allowed,
        remedy="export d2t again, as offsets (target id minus draft id)",
    )


@rule(Severity.WARNING)
def d2t_ascends(case: Case) -> Problems:
    """Target ids of `d2t` ascend. In another order the map may be damaged."""
    kind, d2t = case.spec.vocabulary.map_kind, tensor_integers(case.files, "d2t")
    if kind and d2t and not ascends(target_ids(d2t, kind)):
        yield Problem(
            field="order of the target ids in d2t",
            value="not ascending",
            allowed="any order that lm_head has too; most exports ascend, some go by frequency",
            remedy="if acceptance is near zero, export d2t and lm_head again",
        )


@rule(Severity.ERROR, can_run=True)
def d2t_agrees_with_t2d(case: Case) -> Problems:
    """`t2d` marks the target ids that `d2t` gives."""
    kind, d2t = case.spec.vocabulary.map_kind, tensor_integers(case.files, "d2t")
    header = case.files.tensors.get("t2d")
    if header is None or kind is None or d2t is None:
        return
    kept = marked_ids(case.files)
    if header.shape != (case.target.vocab_size,) or kept is None:
        value: object = f"{header.dtype} of shape {header.shape}"
    elif (differing := set(kept) ^ set(target_ids(d2t, kind))) == set():
        return
    else:
        value = f"a mask that differs from d2t in {len(differing)} target ids, such as {min(differing)}"
    yield Problem(
        field="t2d of the draft",
        value=value,
        allowed=f"a mask over the {case.target.vocab_size} target ids that marks what d2t maps to",
        remedy="ask the publisher which of the two the draft was trained with",
    )


@rule(Severity.ERROR)
def head_is_present(case: Case) -> Problems:
    """Reduced vocabularies and other widths need `lm_head`. vLLM would cut the target's head."""
    if case.spec.head != "shared":
        return
    if case.is_reduced:
        reason = f"a tensor of {case.spec.vocabulary.size} rows, because the draft vocabulary is reduced"
    elif case.spec.hidden_size != case.spec.target_hidden_size:
        reason = (
            f"a tensor of width {case.spec.hidden_size}, because the target's head has width "
            f"{case.spec.target_hidden_size}"
        )
    else:
        return
    yield Problem(
        field="lm_head.weight of the draft",
        value=None,
        allowed=reason,
        remedy="download all files of the draft",
    )


@rule(Severity.ERROR)
def embeddings_can_be_shared(case: Case) -> Problems:
    """A draft of another width than the target's has its own embeddings."""
    spec = case.spec
    if spec.embeddings == "shared" and spec.hidden_size != spec.target_hidden_size:
        yield Problem(
            field="embed_tokens.weight of the draft",
            value=None,
            allowed=f"a tensor of width {spec.hidden_size}, because the target's embeddings have width "
            f"{spec.target_hidden_size}",
            remedy="use a checkpoint that carries its own embeddings",
        )


@rule(Severity.WARNING)
def shared_parts_are_usual(case: Case) -> Problems:
    """EAGLE-3 drafts bring their head, those of speculators also embeddings. No head is tied."""
    spec, missing = case.spec, []
    is_eagle3 = spec.family.method == "eagle3"
    is_tied = case.config.tie_word_embeddings and spec.embeddings != "shared"
    if spec.head == "shared" and not case.is_reduced and (is_eagle3 or is_tied):
        missing.append("lm_head.weight")
    if is_eagle3 and spec.embeddings == "shared" and spec.format == "speculators":
        missing.append("embed_tokens.weight")
    for name in missing:
        yield Problem(
            field=f"{name} of the draft",
            value=None,
            allowed="a tensor of its own; the target's is used in its place",
            remedy="if acceptance is low, check that all files of the draft were downloaded",
        )


@rule(Severity.ERROR, can_run=True)
def tokenizers_agree(case: Case) -> Problems:
    """The draft's tokenizer has the target's ids."""
    difference = compare_tokenizers(case.files.folder, case.target.folder)
    if difference:
        yield Problem(
            field="tokenizer.json of the draft",
            value=difference,
            allowed="the target's tokens under the target's ids",
            remedy=f"{ITS_TARGET}, or remove the file if it came into the "
            "folder by mistake: the target's tokenizer is used",
        )
