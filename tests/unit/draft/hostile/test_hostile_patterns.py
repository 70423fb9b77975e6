"""Regular expressions and other values of a stranger's quantization_config: refused, and at once."""

from __future__ import annotations

import pytest

from tests.support.drafts import inspect, valid_draft
from tests.unit.draft.hostile.test_hostile_files import time_limit
from tests.unit.draft.rules.broken import names
from tests.unit.draft.rules.changes import ATTENTION
from vllm_eagle_ext.draft.quantisation import first_matches, named_for_vllm

SLOW = r"(.|\w|[a-z])*[#!]"  # tries every way to read a name before it gives up
UNREADABLE = {
    "count": "a{99999999999}",
    "depth": "(" * 900,
    "length": "a" * 1001,
    "open": "(",
    "flags": "(?au)x",
}


def with_targets(*targets):
    draft = valid_draft("quantised")
    draft.config["quantization_config"]["config_groups"]["group_0"]["targets"] = list(targets)
    return draft


def test_a_slow_pattern(tmp_path):
    with time_limit():
        inspection = inspect(with_targets(f"re:{SLOW}"), tmp_path)
    assert names(inspection.errors) == {"quantisation_is_well_formed"}
    assert "takes too long to match" in str(inspection.errors[0].problem)


@pytest.mark.parametrize("pattern", UNREADABLE.values(), ids=UNREADABLE)
def test_a_pattern_that_cannot_be_read(tmp_path, pattern):
    with time_limit():
        inspection = inspect(with_targets("Linear", f"re:{pattern}"), tmp_path)
    assert names(inspection.errors) == {"quantisation_is_well_formed"}


def test_patterns_without_a_number(tmp_path):
    with time_limit():
        inspection = inspect(with_targets(*(f"re:.*layers\\.{n}\\." for n in range(100_000))), tmp_path)
    assert "100000 patterns, more than the 1000" in str(inspection.errors[0].problem)


def test_a_rule_for_each_module_of_the_largest_draft_takes_no_time():
    modules = [f"model.layers.{layer}.self_attn.part_{part}" for layer in range(64) for part in range(7)]
    patterns = tuple(rf".*layers\.{name.split('.')[2]}\..*{name[-6:]}$" for name in modules)
    with time_limit():
        matches = first_matches(patterns, tuple(modules))
    assert matches == dict(zip(modules, patterns, strict=True))


@pytest.mark.parametrize("pattern", [SLOW, *UNREADABLE.values()], ids=["slow", *UNREADABLE])
def test_vllm_gets_no_pattern_of_what_is_left_out(tmp_path, pattern):
    """It matches them without an end; the names that its modules have take their place."""
    draft = valid_draft("quantised")
    draft.config["quantization_config"]["ignore"] = ["lm_head", f"re:{pattern}", "re:.*fc"]
    with time_limit():
        inspection = inspect(draft, tmp_path)
        assert not inspection.errors
        left_out = named_for_vllm(inspection.case)["ignore"]
    assert {"lm_head", "model.fc"} <= set(left_out)
    assert not [entry for entry in left_out if entry.startswith("re:")]


@pytest.mark.parametrize("spelling", ["compressed_tensors", "Compressed-Tensors"])
def test_a_method_in_another_spelling(tmp_path, spelling):
    """vLLM takes them for the same method."""
    draft = valid_draft("quantised")
    draft.config["quantization_config"] |= {
        "quant_method": spelling,
        "ignore": ["re:.*fc", f"re:{SLOW}"],
    }
    with time_limit():
        inspection = inspect(draft, tmp_path)
        assert not inspection.findings
        assert "model.fc" in (left_out := named_for_vllm(inspection.case)["ignore"])
    assert not [entry for entry in left_out if entry.startswith("re:")]
    draft.config["quantization_config"]["config_groups"]["group_0"]["targets"] = [5]
    assert names(inspect(draft, tmp_path / "other").errors) == {"quantisation_is_well_formed"}


def test_modelopts_own_form_names_no_method(tmp_path):
    draft = valid_draft("quantised")
    draft.config["quantization_config"] = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    inspection = inspect(draft, tmp_path)
    assert "quantisation_is_well_formed" not in names(inspection.errors)
    assert inspection.case.spec.quantisation == "modelopt"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quant_method", 5), ("quant_method", None), ("config_groups", 5), ("config_groups", {"a": 5}),
        ("ignore", 5), ("ignore", [5]), ("ignore", "lm_head"), ("targets", 5), ("targets", [5]),
        ("targets", None),
    ],
)  # fmt: skip
def test_wrong_types_of_a_quantisation(tmp_path, key, value):
    draft = valid_draft("quantised")
    config = draft.config["quantization_config"]
    (config["config_groups"]["group_0"] if key == "targets" else config)[key] = value
    assert "quantisation_is_well_formed" in names(inspect(draft, tmp_path).errors)


def test_the_number_of_a_layer_has_no_end(tmp_path):
    draft = valid_draft("quantised")
    weight = draft.tensors[f"{ATTENTION}.o_proj.weight"]
    draft.tensors[f"layers.{'9' * 5000}.mlp.down_proj.weight"] = weight.clone()
    with time_limit():
        assert names(inspect(draft, tmp_path).errors)
