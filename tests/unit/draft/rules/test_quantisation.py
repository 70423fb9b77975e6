"""Quantised drafts: what is left plain, what is malformed, what a gate does to them."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN
from tests.support.drafts import inspect, valid_draft
from tests.support.quantised_drafts import gptq_draft
from tests.unit.draft.rules.broken import names
from tests.unit.draft.rules.changes import ATTENTION, IGNORE, as_qwen3, key, plain, quantised_fc

PLAIN_MLP = [plain(f"midlayer.mlp.{part}_proj.weight") for part in ("gate", "up")]
PLAIN_ATTENTION = [plain(f"{ATTENTION}.{part}_proj.weight") for part in "qkv"]


@pytest.mark.parametrize(
    ("changes", "ignored"),
    [
        pytest.param(PLAIN_MLP, "model.layers.8.mlp.gate_up_proj", id="layer"),
        pytest.param([as_qwen3, *PLAIN_ATTENTION], "model.layers.8.qkv_proj", id="qwen3"),
        pytest.param(PLAIN_MLP, "model.layers.0.mlp.up_proj", id="as_the_checkpoint_names_it"),
        pytest.param(PLAIN_MLP, r"re:.*\.up_proj$", id="pattern"),
        pytest.param([quantised_fc], "lm_head", id="fc_quantised_too"),
    ],
)
def test_left_out_by_any_name(tmp_path, changes, ignored):
    draft = valid_draft("quantised")
    key(IGNORE, ["lm_head", "model.fc", ignored])(draft)
    for change in changes:
        change(draft)
    assert inspect(draft, tmp_path).findings == ()


def test_only_what_the_groups_name_is_quantised(tmp_path):
    draft = valid_draft("quantised")
    draft.config["quantization_config"]["config_groups"]["group_0"]["targets"] = [r"re:.*layers\..*"]
    draft.config["quantization_config"]["ignore"] = []
    assert inspect(draft, tmp_path).findings == ()


def test_a_quantised_head_needs_more_than_its_scale(tmp_path):
    draft = valid_draft("quantised")
    draft.tensors["lm_head.weight_scale"] = torch.ones(1)
    del draft.tensors["lm_head.weight"]
    assert names(inspect(draft, tmp_path).errors) == {"head_is_present"}


def _gated_quantised(draft, suffix: str, *shape: int, dtype=torch.float32) -> None:
    """The quantised draft with a gate in q_proj, and one more tensor of that module."""
    name = f"{ATTENTION}.q_proj.weight"
    for each in (name, f"{name}_scale"):
        draft.tensors[each] = torch.cat([draft.tensors[each]] * 2)
    draft.config["gate_layout"] = "concat"
    if suffix:
        draft.tensors[f"{ATTENTION}.q_proj.{suffix}"] = torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("suffix", "shape", "moves"),
    [
        pytest.param("", (), True, id="scale_per_row"),
        pytest.param("weight_shape", (2,), True, id="no_rows"),
        pytest.param("weight_g_idx", (2 * HIDDEN,), False, id="order_of_columns"),
        pytest.param("weight_zero_point", (2 * HIDDEN, 1), False, id="packed_zero_points"),
    ],
)
def test_quantised_gate(tmp_path, suffix, shape, moves):
    draft = valid_draft("quantised")
    _gated_quantised(draft, suffix, *shape)
    rules = names(inspect(draft, tmp_path).errors)
    assert ("gated_rows_can_be_moved" in rules) == (not moves)


@pytest.mark.parametrize(("rows", "fits"), [(HEADS * HEAD_DIM, True), (2 * HEADS * HEAD_DIM, False)])
def test_awq_rows_are_those_of_its_scales(tmp_path, rows, fits):
    """A gated q_proj in AWQ: its rows are columns, and vLLM would keep the first half of them."""
    draft = valid_draft("quantised")
    draft.config["quantization_config"] = {
        "quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["fc"],
    }  # fmt: skip
    for name in [n for n in draft.tensors if n.endswith("_proj.weight")]:
        module, weight = name.removesuffix(".weight"), draft.tensors.pop(name)
        out = rows if module.endswith("q_proj") else weight.shape[0]
        del draft.tensors[f"{name}_scale"]
        draft.tensors |= {
            f"{module}.qweight": torch.ones(weight.shape[1], out // 8, dtype=torch.int32),
            f"{module}.qzeros": torch.ones(weight.shape[1] // 32, out // 8, dtype=torch.int32),
            f"{module}.scales": torch.ones(weight.shape[1] // 32, out).half(),
        }
    assert names(inspect(draft, tmp_path).errors) == (set() if fits else {"qweights_fit"})


WIDE, SAME = {"group_size": 64}, {"group_size": 32, "sym": True}


@pytest.mark.parametrize(
    ("rules", "is_served"),
    [
        ({r".*q_proj": {"bits": 4}}, True), ({r".*q_proj": SAME}, True), ({r".*q_proj": {}}, True),
        ({r"-:.*o_proj": {}}, True),  # its weight is quantised all the same
        ({r"+:.*q_proj": WIDE}, False), ({r"-:.*v_proj": {}, r".*up_proj": {"sym": False}}, False),
        ([".*q_proj"], False), ({".*q_proj": 64}, False),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("method", ["gptq", "Auto_GPTQ"])
def test_rules_of_gptq_that_give_modules_settings_of_their_own(tmp_path, method, rules, is_served):
    draft = gptq_draft(valid_draft("native"), {}, rules).draft
    draft.config["quantization_config"]["quant_method"] = method
    expected = set() if is_served else {"gptq_settings_are_shared"}
    assert names(inspect(draft, tmp_path).errors) == expected


def test_a_part_of_a_fused_module_is_left_out(tmp_path):
    draft = gptq_draft(valid_draft("native"), {"v_proj": None}, {r"-:.*v_proj": {}}).draft
    (error,) = inspect(draft, tmp_path).errors
    assert error.rule == "fused_parts_agree"
    assert "without layers.0.self_attn.v_proj" in str(error.problem)


@pytest.mark.parametrize("size", [64, -1, 32])
def test_gptq_groups_are_those_of_its_scales(tmp_path, size):
    """Columns of o_proj: 64, of which the files have two groups."""
    draft = gptq_draft(valid_draft("native"), {}, {}).draft
    draft.config["quantization_config"]["group_size"] = size
    assert names(inspect(draft, tmp_path).errors) == (set() if size == 32 else {"qweights_fit"})
