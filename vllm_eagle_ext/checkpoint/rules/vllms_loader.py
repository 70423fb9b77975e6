# SPDX-License-Identifier: Apache-2.0
"""Rules about files that vLLM's own drafter class loads, as it converts and refuses nothing."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.checkpoint.tensor_names import COMPUTED

# Spellings that vLLM's class renames by itself.
_RENAMED = ("midlayer.", "encoder.")
_ASIDE = ("t2d", "d2t")
_SHOWN = 5


@rule(Severity.ERROR, for_all=False)
def names_are_as_vllm_reads_them(case: Case) -> Iterable[Problem]:
    wrong = [
        header.published
        for name, header in case.files.tensors.items()
        if header.published != name
        and not header.published.startswith(_RENAMED)
        and header.published not in _ASIDE
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


@rule(Severity.ERROR, for_all=False)
def fc_is_in_the_order_of_the_layers(case: Case) -> Iterable[Problem]:
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


@rule(Severity.ERROR, for_all=False)
def d2t_is_as_vllm_reads_it(case: Case) -> Iterable[Problem]:
    """Refuse a d2t of target ids, and any where the vocabulary is whole.

    vLLM reads offsets, and has no parameter that a map of the whole vocabulary could fill.
    """
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


RULES = (
    names_are_as_vllm_reads_them,
    fc_is_in_the_order_of_the_layers,
    d2t_is_as_vllm_reads_it,
)
