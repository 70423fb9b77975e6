"""Flags: every place where they may stand, and what the options make of them."""

from __future__ import annotations

import pytest

from tests.support.drafts import LAYER, inspect, valid_draft
from vllm_eagle_ext.draft.draft_config import FLAGS, read_flag


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(
    ("family", "block"),
    [
        pytest.param("native", None, id="top_level"),
        pytest.param("native", "eagle_config", id="eagle_config"),
        pytest.param("speculators", None, id="speculators_root"),
        pytest.param("speculators", LAYER, id="speculators_layer"),
    ],
)
def test_every_place_of_a_flag_counts(spec_of, family, block, name, value):
    draft = valid_draft(family)
    draft.config.pop(name, None)
    (draft.config[block] if block else draft.config)[name] = value
    flag = spec_of(draft).flags[name]
    assert flag.value is value
    assert flag.source == (f"{block}.{name}" if block else name)
    assert not flag.is_contradictory


@pytest.mark.parametrize("block", [None, "eagle_config"])
def test_use_aux_norm_is_fc_norm(spec_of, block):
    draft = valid_draft("post-norm")
    del draft.config["fc_norm"]
    (draft.config[block] if block else draft.config)["use_aux_norm"] = True
    spec = spec_of(draft)
    assert spec.fc_norm.value
    assert spec.fc_norm.source.endswith("use_aux_norm")


@pytest.mark.parametrize(
    ("config", "name", "flag"),
    [
        ({"fc_norm": None, "eagle_config": None}, "fc_norm", (False, "default", False)),
        ({"fc_norm": True, "eagle_config": {"fc_norm": False}}, "fc_norm", (True, "fc_norm", True)),
        ({"fc_norm": True, LAYER: {"fc_norm": False}}, "fc_norm", (True, "fc_norm", True)),
        ({"fc_norm": False, "use_aux_norm": True}, "fc_norm", (False, "fc_norm", True)),
        ({"fc_norm": True, "eagle_config": {"fc_norm": True}}, "fc_norm", (True, "fc_norm", False)),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_place_of_a_flag_wins(config, name, flag):
    read = read_flag(config, name)
    assert (read.value, read.source, read.is_contradictory) == flag


@pytest.mark.parametrize("option", [True, False])
@pytest.mark.parametrize("family", ["native", "post-norm"])
def test_option_norm_output(spec_of, family, option):
    spec = spec_of(valid_draft(family), norm_output=option)
    assert (spec.norm_output.value, spec.norm_output.source) == (option, "option norm_output")
    assert spec.family.name == ("post-norm" if option else "native")


def test_option_leaves_a_contradiction_to_be_seen(tmp_path):
    draft = valid_draft("post-norm")
    draft.config["eagle_config"]["norm_output"] = False
    fired = inspect(draft, tmp_path, norm_output=True).findings
    assert [finding.rule for finding in fired] == ["flags_agree"]


@pytest.mark.parametrize("block", [None, "eagle_config"])
def test_use_aux_hidden_state(spec_of, block):
    draft = valid_draft("no_aux")
    draft.config["eagle_config"] = {}
    (draft.config[block] if block else draft.config)["use_aux_hidden_state"] = False
    spec = spec_of(draft)
    assert not spec.fuses_aux_states
    assert spec.aux_layers.layer_ids == ()
