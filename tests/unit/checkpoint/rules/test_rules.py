"""Every rule, by a valid draft of which one thing is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.drafts import FAMILIES, VLLMS, inspect, valid_draft
from tests.unit.checkpoint.rules.broken import inspect_broken, names
from tests.unit.checkpoint.rules.cases import CASES
from vllm_eagle_ext.checkpoint import Severity
from vllm_eagle_ext.checkpoint.rules import EARLY_RULES, RULES

# rule -> severity, and whether an engine would start with it
TABLE: dict[str, tuple[str, bool]] = {
    "architecture_is_named": ("error", False),
    "speculators_type_is_named": ("error", False),
    "architecture_is_served": ("error", False),
    "dspark_is_no_part_of_the_target": ("error", False),
    "model_type_is_readable": ("error", False),
    "method_fits_the_architecture": ("error", False),
    "draft_vocabulary_has_a_drafter": ("error", False),
    "config_is_well_formed": ("error", False),
    "aux_layer_ids_exist": ("error", False),
    "target_is_the_drafts_own": ("error", False),
    "draft_is_no_plain_model": ("error", False),
    "depth_is_the_drafts_own": ("warning", True),
    "tensors_are_complete": ("error", False),
    "tensors_are_expected": ("error", True),
    "tensor_shapes_fit": ("error", False),
    "attention_is_not_narrowed": ("error", False),
    "gate_matches_its_flag": ("error", False),
    "gate_layout_is_stated": ("warning", True),
    "gate_layouts_agree": ("error", False),
    "gate_has_the_heads_rows": ("error", False),
    "gated_rows_can_be_moved": ("error", False),
    "qweights_fit": ("error", False),
    "gptq_rules_fit_the_files": ("error", False),
    "tensor_dtypes_fit": ("error", False),
    "small_tensors_are_finite": ("error", False),
    "fc_reads_every_aux_layer": ("error", False),
    "bias_is_called_attention_bias": ("error", False),
    "mla_sizes_are_stated": ("error", False),
    "weights_can_be_checked": ("warning", True),
    "flags_agree": ("error", True),
    "one_kind_of_input_norm": ("error", True),
    "mla_has_no_norm_before_fc": ("error", False),
    "norms_need_aux_states": ("error", False),
    "fc_norms_match_their_flag": ("error", False),
    "input_norm_matches_its_flag": ("error", False),
    "norm_output_is_unambiguous": ("warning", True),
    "head_is_normed": ("warning", True),
    "norm_before_residual_is_stated": ("warning", True),
    "aux_layers_are_stated": ("warning", True),
    "aux_layer_ids_may_be_inputs": ("warning", True),
    "aux_order_is_unambiguous": ("warning", True),
    "aux_count_is_consistent": ("error", False),
    "draft_vocabulary_fits": ("error", False),
    "d2t_present_iff_reduced": ("error", False),
    "t2d_marks_a_whole_vocabulary": ("error", False),
    "d2t_is_a_map": ("error", False),
    "d2t_ascends": ("warning", True),
    "d2t_agrees_with_t2d": ("error", True),
    "head_is_present": ("error", False),
    "embeddings_can_be_shared": ("error", False),
    "shared_parts_are_usual": ("warning", True),
    "tokenizers_agree": ("error", True),
    "target_width_fits": ("error", False),
    "target_depth_fits": ("error", True),
    "narrow_vocabulary_is_padded": ("error", True),
    "padding_is_the_targets": ("warning", True),
    "eagle3_is_causal": ("error", False),
    "rope_is_stated": ("warning", True),
    "rope_table_is_bounded": ("error", False),
    "embedding_scale_is_stated": ("warning", True),
    "rope_matches_the_target": ("warning", True),
    "trainer_rotates_the_same_part": ("warning", True),
    "heads_divide": ("error", False),
    "layer_types_are_complete": ("error", False),
    "trained_length_covers_max_model_len": ("warning", True),
    "trained_length_covers_the_target": ("note", True),
    "k_leaves_room_in_the_context": ("error", False),
    "k_can_pay": ("error", True),
    "k_is_worth_drafting": ("warning", True),
    "gate_layout_has_a_gate": ("warning", True),
    "draft_window_is_computed": ("error", False),
    "draft_window_holds_a_step": ("error", False),
    "draft_window_is_used": ("warning", True),
    "k_is_within_the_trained_unroll": ("warning", True),
    "quantisation_is_well_formed": ("error", False),
    "quantised_weights_are_there": ("error", False),
    "quantised_weights_have_scales": ("error", False),
    "scales_are_numbers": ("error", False),
    "scales_fit_their_weights": ("error", False),
    "quantised_weights_fit_their_method": ("error", False),
    "fused_parts_agree": ("error", False),
    "quantised_fc_is_in_order": ("error", False),
    "runner_serves_it": ("error", False),
    "runner_is_particular": ("note", True),
    "k_is_within_the_block": ("error", True),
    "block_size_is_stated": ("warning", True),
    "block_size_is_consistent": ("error", False),
    "mask_token_is_in_the_vocabulary": ("error", False),
    "mask_token_is_unambiguous": ("error", False),
    "anchor_is_not_sampled": ("error", False),
    "dflash_reads_aux_states": ("error", False),
    "final_state_is_not_normed": ("warning", True),
    "parallel_drafting_is_asked_for": ("warning", True),
    "heads_are_unambiguous": ("error", False),
    "target_is_not_padded": ("error", False),
    "selector_is_stated": ("error", False),
    "selector_knows_every_token": ("error", False),
    "markov_head_is_computed": ("error", False),
    "markov_candidates_fit": ("error", False),
    "confidence_head_is_there": ("warning", True),
    "confidence_head_is_whole": ("error", False),
    "anchor_is_unambiguous": ("error", False),
    "vocabulary_is_widened": ("warning", True),
    "names_are_as_vllm_reads_them": ("error", False),
    "fc_is_in_the_order_of_the_layers": ("error", False),
    "d2t_is_as_vllm_reads_it": ("error", False),
    "plain_parts_are_plain": ("error", False),
    "keys_are_computed": ("error", True),
    "rope_is_computed": ("error", False),
    "logits_keep_their_order": ("note", True),
    "mathematical_keys_are_known": ("warning", True),
    "weights_are_finite": ("error", False),
    "weights_are_not_all_zero": ("warning", True),
    "weights_have_a_usual_scale": ("warning", True),
}
WITHOUT_A_FUNCTION = {
    "config_is_well_formed", "aux_layer_ids_exist", "target_is_the_drafts_own",
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_valid_draft_has_no_finding(tmp_path, family, seed):
    runner = "v2" if family in VLLMS else "v1"
    assert inspect(valid_draft(family, seed), tmp_path, engine={"runner": runner}).findings == ()


@pytest.mark.promise("depth-gated MLPs are refused", id="architecture_is_served-gated_by_depth")
@pytest.mark.promise(
    "DFlash with windowed and full layers mixed on V1 is refused",
    id="runner_serves_it-mixed_windows_on_v1",
)
@pytest.mark.promise("drafts without aux states on V2 are refused", id="runner_serves_it-no_aux_on_v2")
@pytest.mark.promise("P-EAGLE on V2 is refused", id="runner_serves_it-parallel_on_v2")
@pytest.mark.parametrize("broken", CASES)
def test_rule_fires_alone_and_says_why(tmp_path, broken):
    inspection = inspect_broken(broken, tmp_path)
    found = [finding for finding in inspection.findings if finding.rule == broken.rule]
    assert found, names(inspection.findings)
    assert {(f.severity.value, f.can_run) for f in found} == {TABLE[broken.rule]}
    text = "\n".join(str(finding.problem) for finding in found)
    for word in broken.words:
        assert word in text
    own = {broken.rule} if TABLE[broken.rule][0] == "error" else set()
    assert names(inspection.errors) == own | broken.others


@pytest.mark.parametrize("broken", CASES)
def test_strict_false_makes_warnings_of_what_can_run(tmp_path, broken):
    strict = inspect_broken(broken, tmp_path)
    relaxed = inspect_broken(broken, tmp_path, strict=False)
    assert (relaxed.case is None) is (strict.case is None)
    if relaxed.case is not None and strict.case is not None:
        assert replace(relaxed.case, request=strict.case.request) == strict.case
    for before, after in zip(strict.findings, relaxed.findings, strict=True):
        runs = before.severity == Severity.ERROR and TABLE[before.rule][1]
        assert after == (replace(before, severity=Severity.WARNING) if runs else before)


# Formats that no small valid draft has: test_quantisation.py. Values: preflight/check/test_weights.py.
# A target in the draft's place: preflight/check/test_folded.py.
WITH_TESTS_OF_THEIR_OWN = {
    "draft_is_no_plain_model", "gated_rows_can_be_moved", "gptq_rules_fit_the_files",
    "qweights_fit", "weights_are_finite", "weights_are_not_all_zero", "weights_have_a_usual_scale",
}  # fmt: skip


def test_every_rule_has_a_case():
    assert {param.values[0].rule for param in CASES} == set(TABLE) - WITH_TESTS_OF_THEIR_OWN
    registered = [rule.name for rule in (*EARLY_RULES, *RULES)]
    assert len(registered) == len(set(registered))
    assert set(registered) | WITHOUT_A_FUNCTION == set(TABLE)


def test_severities_and_what_an_engine_would_start_with():
    registered = {rule.name: (rule.severity.value, rule.can_run) for rule in (*EARLY_RULES, *RULES)}
    assert registered == {name: row for name, row in TABLE.items() if name not in WITHOUT_A_FUNCTION}
