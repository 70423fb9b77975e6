# SPDX-License-Identifier: Apache-2.0
"""Rules about norms, their flags and the layers that are read."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_eagle_ext.checkpoint.aux_layers import default_boundaries
from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.families import EAGLE3
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.checkpoint.flags import read_flag

_ASK = "ask the publisher which one the draft was trained with, and correct config.json"
_BELONGS = "check that config.json belongs to the weights"


@rule(Severity.ERROR, can_run=True, families=EAGLE3)
def flags_agree(case: Case) -> Iterable[Problem]:
    flags = {**case.spec.flags, "use_aux_hidden_state": read_flag(case.flat, "use_aux_hidden_state")}
    for name, flag in flags.items():
        if flag.is_contradictory:
            yield Problem(
                field=f"{name} at {' and '.join(place for place, _ in flag.stated)}",
                value=tuple(value for _, value in flag.stated),
                allowed="the same value in every place",
                remedy=_ASK,
            )


@rule(Severity.ERROR, can_run=True, families=EAGLE3)
def one_kind_of_input_norm(case: Case) -> Iterable[Problem]:
    """vLLM would apply both norms; no draft is trained with both."""
    if case.spec.fc_norm and case.spec.norm_before_fc:
        yield Problem(
            field="fc_norm and norm_before_fc of the draft's config.json",
            value=(True, True),
            allowed="one of the two",
            remedy=_ASK,
        )


@rule(Severity.ERROR, families=["mla"])
def mla_has_no_norm_before_fc(case: Case) -> Iterable[Problem]:
    """vLLM's DeepSeek drafter ignores the flag."""
    if case.spec.norm_before_fc:
        yield Problem(
            field="norm_before_fc of the draft's config.json",
            value=True,
            allowed="false: the MLA drafter has no norm over all aux layers",
            remedy=_BELONGS,
        )


@rule(Severity.ERROR, families=EAGLE3)
def norms_need_aux_states(case: Case) -> Iterable[Problem]:
    """Norms before fc, in a draft that has no fc."""
    stated = [name for name in ("fc_norm", "norm_before_fc") if case.spec.flags[name]]
    if stated and not case.spec.fuses_aux_states:
        yield Problem(
            field=f"{' and '.join(stated)} of the draft's config.json",
            value=True,
            allowed="false, because use_aux_hidden_state is false and the draft has no fc",
            remedy=_BELONGS,
        )


@rule(Severity.ERROR, families=EAGLE3)
def fc_norms_match_their_flag(case: Case) -> Iterable[Problem]:
    """One norm per aux layer, and none without the flag."""
    if not case.has_tensors:
        return
    found = sorted(name for name in case.files.tensors if name.startswith("fc_norm."))
    wanted = len(case.spec.aux_layers.boundaries) if case.spec.fc_norm else 0
    if found != sorted(f"fc_norm.{k}.weight" for k in range(wanted)):
        yield Problem(
            field="fc_norm tensors of the draft",
            value=found,
            allowed=f"fc_norm.0 to fc_norm.{wanted - 1}, one per aux layer"
            if case.spec.fc_norm
            else "none, because config.json does not set fc_norm",
            remedy=_BELONGS,
        )


@rule(Severity.ERROR, families=EAGLE3)
def input_norm_matches_its_flag(case: Case) -> Iterable[Problem]:
    """vLLM drops the weight without the flag, and leaves the norm at ones without the weight."""
    present = "input_norm.weight" in case.files.tensors
    if case.has_tensors and present != case.spec.norm_before_fc.value:
        yield Problem(
            field="norm_before_fc of the draft's config.json",
            value=case.spec.norm_before_fc.value,
            allowed=f"{present}, because the weights have {'an' if present else 'no'} input_norm.weight",
            remedy=_BELONGS,
        )


@rule(Severity.WARNING, families=EAGLE3)
def norm_output_is_unambiguous(case: Case) -> Iterable[Problem]:
    """Before its post-norm support SpecForge wrote `norm_output: true` for the norm before the head."""
    spec = case.spec
    if spec.norm_output.source.startswith("option") or spec.fc_norm.value == spec.norm_output.value:
        return
    yield Problem(
        field="norm_output of the draft's config.json",
        value=spec.norm_output.value,
        allowed=f"{spec.fc_norm.value}, as fc_norm: post-norm drafts are trained with both, and older "
        "exports set norm_output for drafts that feed back the raw state",
        remedy='compare the acceptance rate with {"eagle_ext": {"norm_output": '
        f"{str(not spec.norm_output.value).lower()}}}}}",
    )


@rule(Severity.WARNING, families=EAGLE3)
def norm_before_residual_is_stated(case: Case) -> Iterable[Problem]:
    if case.spec.format == "speculators" and not case.spec.norm_before_residual.stated:
        yield Problem(
            field="norm_before_residual of the draft's config.json",
            value=None,
            allowed="true or false; false is taken, speculators' default, where vLLM alone takes true",
            remedy="ask the publisher, and state it in config.json",
        )


@rule(Severity.WARNING, families=EAGLE3)
def aux_layers_are_stated(case: Case) -> Iterable[Problem]:
    layers = case.spec.aux_layers
    if layers.given_ids is None and layers.boundaries and "option" not in layers.rule:
        yield Problem(
            field="eagle_aux_hidden_state_layer_ids of the draft's config.json",
            value=None,
            allowed=f"its trained layers; {list(layers.boundaries)} is taken, EAGLE-3's default",
            remedy='if acceptance is low, list the boundaries: {"eagle_ext": {"aux_layers": [..]}}',
        )


@rule(Severity.WARNING, families=EAGLE3)
def aux_ids_may_be_boundaries(case: Case) -> Iterable[Problem]:
    """Ids equal to EAGLE-3's own boundaries, read as names of outputs."""
    layers = case.spec.aux_layers
    default = default_boundaries(case.target.num_layers)
    if layers.given_ids == default and layers.boundaries != default and "option" not in layers.rule:
        yield Problem(
            field="nested aux layer ids of the draft",
            value=list(default),
            allowed=f"ids of outputs, read here as boundaries {list(layers.boundaries)}; these very "
            "numbers are EAGLE-3's default boundaries 2, N//2, N-3",
            remedy='compare the acceptance rate with {"eagle_ext": {"aux_layers": "boundary"}}',
        )


@rule(Severity.NOTE)
def aux_order_is_restored(case: Case) -> Iterable[Problem]:
    layers = case.spec.aux_layers
    if layers.is_reordered:
        yield Problem(
            field="order of the draft's aux layers",
            value=list(layers.given_ids or ()),
            allowed=f"any: vLLM captures {list(layers.boundaries)} in ascending order",
            remedy="nothing: fc and fc_norm are permuted to match while they are loaded",
        )


@rule(Severity.ERROR)
def aux_count_is_consistent(case: Case) -> Iterable[Problem]:
    count = len(case.spec.aux_layers.boundaries)
    for key in ("num_aux_hidden_states", "num_aux_layers"):
        stated = getattr(case.config, key)
        if stated is not None and stated != count and case.spec.fuses_aux_states:
            yield Problem(
                field=f"{key} of the draft's config.json",
                value=stated,
                allowed=f"{count}, the number of aux layers ({case.spec.aux_layers.rule})",
                remedy='list the boundaries: {"eagle_ext": {"aux_layers": [..]}}',
            )


RULES = (
    flags_agree,
    one_kind_of_input_norm,
    mla_has_no_norm_before_fc,
    norms_need_aux_states,
    fc_norms_match_their_flag,
    input_norm_matches_its_flag,
    norm_output_is_unambiguous,
    norm_before_residual_is_stated,
    aux_layers_are_stated,
    aux_ids_may_be_boundaries,
    aux_order_is_restored,
    aux_count_is_consistent,
)
