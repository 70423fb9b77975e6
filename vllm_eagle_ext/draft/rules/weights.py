# SPDX-License-Identifier: Apache-2.0
"""Rules about files of weights: those that vLLM's own drafter class loads, as it converts and refuses
nothing, and values, where they were read (`vllm-eagle check --weights`).

Scale: weights of trained transformers have a root mean square of 0.005 to 1 and hardly a value beyond
100, norms up to some hundreds; float16, in which many are published, ends at 65504. So that no draft
that was trained trips, what is reported lies outside by orders of magnitude: bytes of another dtype read
as this one, damaged files, or a training that diverged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vllm_eagle_ext.draft.findings import Problem, Severity, rule
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.tensors import COMPUTED

# Spellings that vLLM's class renames by itself.
_RENAMED = ("midlayer.", "encoder.")
_ASIDE = ("t2d", "d2t")
_SHOWN = 5  # names of tensors in a message


@rule(Severity.ERROR, of="second head")
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


@rule(Severity.ERROR, of="second head")
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


@rule(Severity.ERROR, of="second head")
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


LARGEST, LARGEST_RMS, SMALLEST_RMS = 1e4, 1e3, 1e-8
_AGAIN = "download the file again, or ask the publisher"


@rule(Severity.ERROR)
def weights_are_finite(case: Case) -> Iterable[Problem]:
    # Small tensors are read always, and have a rule of their own.
    found = {
        name: f"{survey.non_finite} infinite or NaN"
        for name, survey in case.files.surveys.items()
        if survey.non_finite and name not in case.files.values
    }
    yield from _one_problem(
        case, found, "finite numbers", f"{_AGAIN}: the file is damaged, or training diverged"
    )


@rule(Severity.WARNING)
def weights_are_not_all_zero(case: Case) -> Iterable[Problem]:
    """Warn of weights that are all zero.

    Biases may be; a weight that is leaves nothing of what it is multiplied with.
    """
    found = {
        name: "zero, all of them"
        for name, survey in case.files.surveys.items()
        if survey.is_zero and name.endswith((".weight", ".qweight", ".weight_packed"))
    }
    yield from _one_problem(
        case, found, "trained numbers; with these the draft is expected to guess",
        f"{_AGAIN}: a download may have been cut short, or the file never held trained weights",
    )  # fmt: skip


@rule(Severity.WARNING)
def weights_have_a_usual_scale(case: Case) -> Iterable[Problem]:
    found = {
        name: f"up to {survey.largest:.3g}, {survey.rms:.3g} in the root mean square"
        for name, survey in case.files.surveys.items()
        if name.endswith(".weight")
        and not survey.is_zero
        and (survey.largest > LARGEST or survey.rms > LARGEST_RMS or 0 < survey.rms < SMALLEST_RMS)
    }
    yield from _one_problem(
        case, found,
        f"up to {LARGEST:g}, and {SMALLEST_RMS:g} to {LARGEST_RMS:g} in the root mean square; trained "
        "weights lie far inside",
        f"{_AGAIN}: these may be bytes of another dtype",
    )  # fmt: skip


def _one_problem(case: Case, found: Mapping[str, str], allowed: str, remedy: str) -> Iterator[Problem]:
    """Return one problem of all tensors that share it, with the first one's value."""
    if not found:
        return
    published = [case.files.tensors[name].published for name in found]
    more = f" and {len(published) - _SHOWN} more" if len(published) > _SHOWN else ""
    value = next(iter(found.values()))
    yield Problem(
        field=f"values of {', '.join(published[:_SHOWN])}{more}",
        value=value if len(published) == 1 else f"{value} (of {published[0]}; {len(published)} tensors)",
        allowed=allowed,
        remedy=remedy,
    )
