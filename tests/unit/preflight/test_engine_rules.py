"""Severity of the engine's rules, and the error that a start raises for each."""

from __future__ import annotations

from tests.support.engine import ROOT
from vllm_eagle_ext import engine_rules
from vllm_eagle_ext.checkpoint.findings import Rule

# rule -> severity, whether an engine would start with it, and the error
TABLE = {
    "replay_needs_states": ("error", False, "HybridStateError"),
    "pipeline_stages_can_draft": ("error", False, "SpeculativeConfigError"),
    "pipeline_stages_were_run": ("warning", True, None),
    "ranks_share_evenly": ("error", False, "SpeculativeConfigError"),
    "draft_can_be_quantised": ("error", False, "SpeculativeConfigError"),
    "quantisation_has_layers": ("warning", True, None),
    "cpu_has_the_kernels": ("error", False, "SpeculativeConfigError"),
    "dtype_has_a_kernel": ("warning", True, None),
    "later_weights_stay_the_drafts": ("error", False, "SpeculativeConfigError"),
    "texts_stay_the_targets": ("warning", True, None),
    "target_hands_out_its_states": ("error", False, "UnsupportedTargetError"),
    "one_length_stops_no_drafts": ("warning", True, None),
    "adapters_meet_their_rows": ("warning", True, None),
    "default_requests_are_served": ("warning", True, None),
    "prompts_have_tokens": ("error", False, "SpeculativeConfigError"),
    "padding_is_cut_off": ("error", False, "SpeculativeConfigError"),
    "images_are_known_to_v1": ("error", False, "UnsupportedTargetError"),
    "target_hands_out_its_embeddings": ("error", False, "UnsupportedTargetError"),
    "draft_head_reads_little": ("note", True, None),
    "draft_cache_lies_in_one_group": ("error", True, "UnsupportedDraftError"),
    "shorter_drafts_stay_apart": ("error", False, "SpeculativeConfigError"),
    "one_token_prompts_stay_right": ("warning", True, None),
    "adaptive_option_is_used": ("warning", True, None),
    "rows_can_be_kept": ("error", False, "OptionsError"),
    "draft_vocabulary_is_used": ("error", False, "OptionsError"),
    "state_can_be_kept": ("error", False, "HybridStateError"),
    "short_rows_are_served": ("warning", True, None),
    "states_are_saved_in_time": ("warning", True, None),
    "vllm_is_tested": ("error", False, "UnsupportedVllmError"),
}


def rules() -> list[Rule]:
    groups = [value for value in vars(engine_rules).values() if isinstance(value, tuple)]
    return [rule for group in groups for rule in group if isinstance(rule, Rule)]


def test_severity_and_error():
    found = {
        rule.name: (
            rule.severity.value,
            rule.can_run,
            rule.error.__name__ if rule.severity == "error" else None,
        )
        for rule in rules()
    }
    assert found == TABLE


def test_each_is_judged_once():
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names))


def test_the_page_names_each():
    page = (ROOT / "docs/drafts.md").read_text(encoding="utf-8")
    assert [name for name in TABLE if f"`{name}`" not in page] == []
