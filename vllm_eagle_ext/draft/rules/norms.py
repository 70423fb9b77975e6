# SPDX-License-Identifier: Apache-2.0
"""Rules about norms and their flags."""

from __future__ import annotations

from vllm_eagle_ext.draft.draft_config import read_flag
from vllm_eagle_ext.draft.findings import (
    BELONGS,
    WHICH_ONE,
    Problem,
    Problems,
    Severity,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.spec import Case


@rule(Severity.ERROR, can_run=True, of="eagle3")
def flags_agree(case: Case) -> Problems:
    """A flag has one value everywhere."""
    flags = {**case.spec.flags, "use_aux_hidden_state": read_flag(case.flat, "use_aux_hidden_state")}
    for name, flag in flags.items():
        if flag.is_contradictory:
            yield Problem(
                field=f"{name} at {' and '.join(place for place, _ in flag.places)}",
                value=tuple(value for _, value in flag.places),
                allowed="the same value in every place",
                remedy=WHICH_ONE,
            )


@rule(Severity.ERROR, can_run=True, of="eagle3")
def one_kind_of_input_norm(case: Case) -> Problems:
    """`fc_norm` excludes `norm_before_fc`. vLLM would apply both; no draft is trained so."""
    if case.spec.fc_norm and case.spec.norm_before_fc:
        yield key_problem(
            "fc_norm and norm_before_fc",
            (True, True),
            allowed="one of the two",
            remedy=WHICH_ONE,
        )


@rule(Severity.ERROR, of="latent attention")
def mla_has_no_norm_before_fc(case: Case) -> Problems:
    """MLA excludes `norm_before_fc`. vLLM's DeepSeek drafter ignores the flag."""
    if case.spec.norm_before_fc:
        yield key_problem(
            "norm_before_fc",
            True,
            allowed="false: the MLA drafter has no norm over all aux layers",
            remedy=BELONGS,
        )


@rule(Severity.ERROR, of="eagle3")
def norms_need_aux_states(case: Case) -> Problems:
    """Norms before `fc` need `fc`."""
    norms = [name for name in ("fc_norm", "norm_before_fc") if case.spec.flags[name]]
    if norms and not case.spec.fuses_aux_states:
        yield key_problem(
            " and ".join(norms),
            True,
            allowed="false, because use_aux_hidden_state is false and the draft has no fc",
            remedy=BELONGS,
        )


@rule(Severity.ERROR, of="eagle3")
def fc_norms_match_their_flag(case: Case) -> Problems:
    """Each aux layer has `fc_norm.k` with the flag, none without."""
    if not case.has_tensors:
        return
    norms = sorted(name for name in case.files.tensors if name.startswith("fc_norm."))
    wanted = len(case.spec.aux_layers.layer_ids) if case.spec.fc_norm else 0
    if norms != sorted(f"fc_norm.{k}.weight" for k in range(wanted)):
        yield Problem(
            field="fc_norm tensors of the draft",
            value=norms,
            allowed=f"fc_norm.0 to fc_norm.{wanted - 1}, one per aux layer"
            if case.spec.fc_norm
            else "none, because config.json does not set fc_norm",
            remedy=BELONGS,
        )


@rule(Severity.ERROR, of="eagle3")
def input_norm_matches_its_flag(case: Case) -> Problems:
    """`input_norm` exists exactly with `norm_before_fc`. vLLM drops it, or leaves it at ones."""
    present = "input_norm.weight" in case.files.tensors
    if case.has_tensors and present != case.spec.norm_before_fc.value:
        yield key_problem(
            "norm_before_fc",
            case.spec.norm_before_fc.value,
            allowed=f"{present}, because the weights have {'an' if present else 'no'} input_norm.weight",
            remedy=BELONGS,
        )


@rule(Severity.WARNING, of="autoregressive")
def norm_output_is_unambiguous(case: Case) -> Problems:
    """`norm_output` equals `fc_norm`; no old SpecForge wrote it.

    speculators' flag says what is fed back, SpecForge's since September 2026. Before, true was the norm
    before the head, with the raw state fed back, and false was no norm there at all.
    """
    spec, flag = case.spec, case.spec.norm_output
    if spec.format == "speculators" or flag.source.startswith("option"):
        return
    if spec.fc_norm.value != flag.value:
        yield key_problem(
            "norm_output",
            flag.value,
            allowed=f"{spec.fc_norm.value}, as fc_norm: post-norm drafts are trained with both, and "
            "older exports set norm_output for drafts that feed back the raw state",
            remedy=_measure(flag.value),
        )
    elif flag.value and may_be_of_older_specforge(case):
        yield key_problem(
            "norm_output",
            True,
            allowed="true for drafts that feed back the normalised state, as this one is served; "
            "SpecForge up to 0.2.0 wrote true for drafts that feed back the raw state, and nothing in "
            "this checkpoint says that it is not one of them",
            remedy=_measure(flag.value),
        )


@rule(Severity.WARNING, of="autoregressive")
def head_is_normed(case: Case) -> Problems:
    """No old SpecForge wrote `norm_output: false`."""
    flag = case.spec.norm_output
    if flag.places and not flag.places[0][1] and may_be_of_older_specforge(case):
        yield key_problem(
            "norm_output",
            False,
            allowed="false for drafts that feed back the raw state; SpecForge up to 0.2.0 wrote false "
            "for drafts without a norm before the head, which no drafter computes",
            remedy="if acceptance is near zero, ask the publisher which SpecForge trained the draft",
        )


def _measure(value: bool) -> str:
    return (
        "run `vllm-eagle verify --feedback`, which measures both readings and says which is right; for "
        f'the other one, set {{"eagle_ext": {{"norm_output": {str(not value).lower()}}}}}'
    )


def may_be_of_older_specforge(case: Case) -> bool:
    """Tell whether SpecForge up to 0.2.0 can have written the draft.

    Its Llama draft has one layer, called `midlayer`, and three aux states. Their ids stay where its
    training's config had them. d2t and t2d are saved for any vocabulary.
    """
    spec, tensors = case.spec, case.files.tensors
    named_so = spec.architecture == "LlamaForCausalLMEagle3"
    shaped = spec.num_layers == 1 and len(spec.aux_layers.layer_ids) == 3
    if spec.format == "speculators" or spec.gate or spec.norm_before_fc or not (named_so and shaped):
        return False
    named = {name.replace("layers.0.", "midlayer."): header for name, header in tensors.items()}
    as_there = all(header.published == name for name, header in named.items())
    return not case.has_tensors or (as_there and "d2t" in tensors and "t2d" in tensors)


@rule(Severity.WARNING, of="eagle3")
def norm_before_residual_is_stated(case: Case) -> Problems:
    """speculators drafts state `norm_before_residual`."""
    if case.spec.format == "speculators" and not case.spec.norm_before_residual.places:
        yield key_problem(
            "norm_before_residual",
            None,
            allowed="true or false; false is taken, speculators' default, where stock vLLM takes true",
            remedy="ask the publisher, and state it in config.json",
        )
