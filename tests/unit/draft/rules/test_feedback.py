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


EITHER = {"warnings": {RULE}, "fed_back": True}
AS_STATED = {"warnings": set(), "fed_back": True}
RAW = AS_STATED | {"fed_back": False}
INPUT_NORM = (key("norm_before_fc", True), more("input_norm.weight", 3 * HIDDEN))


@pytest.mark.parametrize(
    ("family", "changes", "options", "expected"),
    [
        pytest.param("native", POST_NORM, {}, EITHER, id="as_specforge_writes_it"),
        pytest.param("native", (*POST_NORM, no_key("eagle_config")), {}, EITHER, id="default_layers"),
        pytest.param(
            "native", (*POST_NORM, no_key("eagle_config"), key(TOP_IDS, [2, 3, 4])), {}, EITHER,
            id="ids_at_top_level",
        ),
        # SpecForge did not write these.
        pytest.param("native", (*POST_NORM, in_vllms_names), {}, AS_STATED, id="names"),
        pytest.param("native", (*POST_NORM, with_names_of_its_own), {}, AS_STATED, id="names_of_norms"),
        pytest.param("native", (*POST_NORM, no_tensor("t2d")), {}, AS_STATED, id="no_t2d"),
        pytest.param("native", (*POST_NORM, of_two_layers), {}, AS_STATED, id="two_aux_layers"),
        pytest.param(
            "native", (*POST_NORM, key("architectures", ["Eagle3LlamaForCausalLM"])), {}, AS_STATED,
            id="architecture",
        ),
        pytest.param("speculators", POST_NORM, {}, AS_STATED, id="both"),
        pytest.param("speculators", (key("norm_output", True),), {}, AS_STATED, id="norm_output"),
        pytest.param("speculators", (*POST_NORM, key("norm_output", False)), {}, RAW, id="fc_norm"),
        pytest.param(
            "speculators", (key("norm_output", True), *INPUT_NORM), {}, AS_STATED, id="speculators"
        ),
        pytest.param("native", POST_NORM, {"norm_output": True}, AS_STATED, id="option_true"),
        pytest.param("native", POST_NORM, {"norm_output": False}, RAW, id="option_false"),
    ],
)  # fmt: skip
def test_what_is_fed_back(tmp_path, family, changes, options, expected):
    draft = valid_draft(family)
    for change in changes:
        change(draft)
    inspection = inspect(draft, tmp_path, **options)
    assert names(inspection.findings) - {"aux_layers_are_stated"} == expected["warnings"]
    assert inspection.spec.norm_output.value is expected["fed_back"]


def test_pickled_weights_tell_nothing(tmp_path):
    draft = valid_draft("native")
    for change in POST_NORM:
        change(draft)
    draft.tensors.clear()
    assert RULE in names(inspect(draft, tmp_path).warnings)
