"""Whether a checkpoint tells which state an EAGLE 3.1 draft feeds back."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import inspect, valid_draft
from tests.unit.draft.rules.broken import names
from tests.unit.draft.rules.changes import IDS, POST_NORM, TOP_IDS, key, more, no_key, no_tensor

RULE = "norm_output_is_unambiguous"


def in_vllms_names(draft):
    draft.tensors = {n.replace("midlayer.", "layers.0."): t for n, t in draft.tensors.items()}


def with_names_of_its_own(draft):
    for k, name in enumerate(("low", "mid", "high")):
        draft.tensors[f"aux_norm_{name}.weight"] = draft.tensors.pop(f"fc_norm.{k}.weight")


def of_two_layers(draft):
    draft.config[IDS.split(".")[0]] = {TOP_IDS: [1, 2]}
    draft.tensors["fc.weight"] = draft.tensors["fc.weight"][:, : 2 * HIDDEN].contiguous()
    del draft.tensors["fc_norm.2.weight"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([], id="as_specforge_writes_it"),
        pytest.param([no_key("eagle_config")], id="default_layers"),
        pytest.param([no_key("eagle_config"), key(TOP_IDS, [2, 3, 4])], id="ids_at_top_level"),
        pytest.param([lambda draft: draft.tensors.clear()], id="bin"),
    ],
)
def test_it_may_be_either(tmp_path, changes):
    draft = valid_draft("native")
    for change in (*POST_NORM, *changes):
        change(draft)
    inspection = inspect(draft, tmp_path)
    assert RULE in names(inspection.warnings)
    assert inspection.spec.norm_output.value


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([in_vllms_names], id="names"),
        pytest.param([with_names_of_its_own], id="names_of_norms"),
        pytest.param([no_tensor("t2d")], id="no_t2d"),
        pytest.param([of_two_layers], id="two_aux_layers"),
        pytest.param([key("architectures", ["Eagle3LlamaForCausalLM"])], id="architecture"),
    ],
)
def test_specforge_did_not_write_it(tmp_path, changes):
    draft = valid_draft("native")
    for change in (*POST_NORM, *changes):
        change(draft)
    inspection = inspect(draft, tmp_path)
    assert names(inspection.findings) == set()
    assert inspection.spec.norm_output.value


@pytest.mark.parametrize(
    ("changes", "fed_back"),
    [
        pytest.param(POST_NORM, True, id="both"),
        pytest.param((key("norm_output", True),), True, id="norm_output"),
        pytest.param((*POST_NORM, key("norm_output", False)), False, id="fc_norm"),
        pytest.param(
            (
                key("norm_output", True),
                key("norm_before_fc", True),
                more("input_norm.weight", 3 * HIDDEN),
            ),
            True,
            id="defaults_of_speculators",
        ),
    ],
)
def test_the_speculators_flag_says_it(tmp_path, changes, fed_back):
    draft = valid_draft("speculators")
    for change in changes:
        change(draft)
    inspection = inspect(draft, tmp_path)
    assert inspection.findings == ()
    assert inspection.spec.norm_output.value is fed_back


@pytest.mark.parametrize("value", [True, False])
def test_the_option_settles_it(tmp_path, value):
    draft = valid_draft("native")
    for change in POST_NORM:
        change(draft)
    inspection = inspect(draft, tmp_path, norm_output=value)
    assert inspection.findings == ()
    assert inspection.spec.norm_output.value is value
