"""The gate of the attention, by the rows of its weights."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN
from tests.support.drafts import inspect, valid_draft


@pytest.mark.parametrize(
    ("rows", "gate"),
    [
        pytest.param(HEADS * HEAD_DIM, None, id="none"),
        pytest.param(2 * HEADS * HEAD_DIM, "elementwise", id="elementwise"),
        pytest.param(HEADS * HEAD_DIM + HEADS, "headwise", id="headwise"),
        pytest.param(HEADS * HEAD_DIM + 1, None, id="neither"),
    ],
)
def test_gate(spec_of, rows, gate):
    draft = valid_draft("native")
    draft.tensors["midlayer.self_attn.q_proj.weight"] = torch.ones(rows, 2 * HIDDEN)
    spec = spec_of(draft)
    assert (spec.gate and spec.gate.kind, spec.family.name) == (gate, "gated" if gate else "native")


@pytest.mark.parametrize("module", ["gate", "g_proj", "gate_proj"])
@pytest.mark.parametrize(("rows", "kind"), [(HEADS * HEAD_DIM, "elementwise"), (HEADS, "headwise")])
def test_gate_in_a_tensor_of_its_own(spec_of, module, rows, kind):
    draft = valid_draft("native")
    draft.tensors[f"midlayer.self_attn.{module}.weight"] = torch.ones(rows, 2 * HIDDEN)
    gate = spec_of(draft).gate
    assert (gate.kind, gate.module) == (kind, module)


@pytest.mark.parametrize(
    ("change", "options", "layout", "source"),
    [
        ({}, {}, "interleaved", "gate_layout"),
        ({"gate_layout": None}, {}, "interleaved", "assumed"),
        ({"gate_layout": "concat"}, {}, "concat", "gate_layout"),
        ({"gate_layout": None, "eagle_config.": "concat"}, {}, "concat", "eagle_config.gate_layout"),
        ({"gate_layout": "concat"}, {"gate_layout": "interleaved"}, "interleaved", "option gate_layout"),
    ],
)
def test_gate_layout(spec_of, change, options, layout, source):
    draft = valid_draft("gated")
    if (nested := change.pop("eagle_config.", None)) is not None:
        draft.config["eagle_config"]["gate_layout"] = nested
    draft.config |= change
    gate = spec_of(draft, **options).gate
    assert (gate.layout, gate.layout_source) == (layout, source)


def test_mla_without_a_query_latent_has_no_gate(tmp_path):
    """Its q_proj has rows for nope and rotary parts, here as many as a gated one would."""
    draft = valid_draft("mla")
    nope = rotary = 32
    draft.config |= {"q_lora_rank": None, "qk_nope_head_dim": nope, "qk_rope_head_dim": rotary}
    latent, value = draft.config["kv_lora_rank"], draft.config["v_head_dim"]
    for name in ("q_a_proj", "q_a_layernorm", "q_b_proj"):
        del draft.tensors[f"midlayer.self_attn.{name}.weight"]
    shapes = {
        "q_proj": (HEADS * (nope + rotary), 2 * HIDDEN),
        "kv_a_proj_with_mqa": (latent + rotary, 2 * HIDDEN),
        "kv_b_proj": (HEADS * (nope + value), latent),
    }
    for name, shape in shapes.items():
        draft.tensors[f"midlayer.self_attn.{name}.weight"] = torch.ones(shape)
    inspection = inspect(draft, tmp_path)
    assert inspection.findings == ()
    assert inspection.spec.gate is None
