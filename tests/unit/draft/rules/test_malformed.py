"""No value of a config makes the rules raise, or their messages long."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drafts import FAMILIES, LAYER, TARGET, inspect, valid_draft, write
from tests.unit.draft.rules.changes import key
from vllm_eagle_ext.draft import TargetFacts, inspect_draft, read_draft_files
from vllm_eagle_ext.draft.spec import DraftRequest

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 1000) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths(config: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in config.items():
        keys.append(prefix + name)
        if isinstance(value, dict):
            keys += paths(value, f"{prefix}{name}.")
    return keys


@cache
def files_of(family: str, folder) -> Any:
    return read_draft_files(str(write(valid_draft(family), folder / family)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drafts")


# Keys that the valid drafts lack.
_FURTHER = (
    "dflash_config", "eagle_config.norm_output", "is_causal", "layer_types", "num_aux_hidden_states",
    "quantization_config", "quantization_config.ignore", "quantization_config.quant_method",
    "rope_parameters", "rope_parameters.full_attention", "rope_parameters.full_attention.factor",
    "rope_parameters.full_attention.rope_theta", "rope_scaling", "rope_scaling.factor", "sliding_window",
    "speculators_config", "speculators_model_type", "tie_word_embeddings", "transformer_layer_config",
    "transformer_layer_config.model_type",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_config_makes_the_rules_raise(folder, data):
    family = data.draw(st.sampled_from(FAMILIES))
    draft = valid_draft(family)
    path = data.draw(st.sampled_from([*paths(draft.config), *_FURTHER]))
    key(path, data.draw(json_values))(draft)
    files = replace(files_of(family, folder), config=draft.config)
    engine = DraftRequest(method=draft.method, k=draft.k, max_model_len=512)
    inspection = inspect_draft(files, TargetFacts.from_config(TARGET), engine)
    assert all(str(finding.problem) for finding in inspection.findings)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        pytest.param("native", key("quantization_config", {"ignore": 5}), id="ignore"),
        pytest.param("native", key("num_hidden_layers", 2**62), id="many_layers"),
        pytest.param("speculators", key("speculators_model_type", ["eagle3"]), id="speculators_type"),
        pytest.param("speculators", key(f"{LAYER}.model_type", ["llama"]), id="layer_type"),
    ],
)
def test_malformed_values_do_not_make_the_rules_raise(tmp_path, family, change):
    draft = valid_draft(family)
    change(draft)
    assert inspect(draft, tmp_path)


@pytest.mark.parametrize("family", ["native", "dflash"])
def test_a_claim_of_many_layers_does_not_fill_the_message(tmp_path, family):
    draft = valid_draft(family)
    draft.config |= {"num_hidden_layers": 1000, "layer_types": None}
    errors = inspect(draft, tmp_path).errors
    assert errors
    assert all(len(str(error.problem)) < 10_000 for error in errors)
