"""`draft_window`: what vLLM's classes read, and a DFlash draft with it against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.drafting import BOUND, ROWS, STEPS, difference, load, module_logits
from tests.support.drafts import inspect, valid_draft
from tests.unit.measure.reference.layers import tiny_target
from vllm_eagle_ext.measure.reference.published import load_reference

WINDOW = 9  # a DFlash step has eight rows
FAMILIES = ("native", "gated", "qwen3", "speculators", "p-eagle", "dflash", "dflash-speculators")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_vllms_classes_read(family, tmp_path):
    drafter, *_ = load(tmp_path, valid_draft(family), draft_window=WINDOW)
    config = drafter.config
    assert config.layer_types == ["sliding_attention"] * config.num_hidden_layers
    assert config.sliding_window == WINDOW
    if family.startswith("dflash"):
        assert [layer.self_attn.sliding_window for layer in drafter.model.layers] == [WINDOW] * 2
        assert [layer.self_attn.causal for layer in drafter.model.layers] == [False] * 2


@pytest.mark.parametrize(("window", "is_same"), [(WINDOW, True), (WINDOW + 1, False), (None, False)])
def test_logits(window, is_same, tmp_path):
    draft = valid_draft("dflash")
    drafter, layer_ids, path, probe = load(tmp_path, draft, draft_window=WINDOW)
    spec = inspect(draft, path, draft_window=window).spec
    target = tiny_target()
    target.get_input_embeddings().weight.data = probe.embed_tokens
    target.get_output_embeddings().weight.data = probe.lm_head
    reference: Any = load_reference(spec, path, target)
    states = [state[:ROWS] for state in probe.aux(spec.aux_layers.layer_ids)]
    with torch.inference_mode():
        context = reference.context(states)
        expected = reference.logits(context, int(probe.tokens[0]), STEPS)
    apart = difference(module_logits(drafter, "dflash", layer_ids, probe), expected)
    assert apart < BOUND if is_same else apart > 10 * BOUND


@pytest.mark.parametrize(
    ("option", "max_model_len", "window"), [("auto", 4096, 512), ("auto", 512, None), (64, 512, 64)]
)
def test_auto_is_what_the_draft_was_trained_on(option, max_model_len, window, tmp_path):
    draft = valid_draft("native")
    engine = {"max_model_len": max_model_len}
    spec = inspect(draft, tmp_path, engine=engine, draft_window=option).spec
    assert draft.config["max_position_embeddings"] == 512
    assert spec.draft_window == window
    assert {layer.window for layer in spec.layers} == {window}


@pytest.mark.parametrize(("max_model_len", "fits"), [(512, True), (513, False)])
def test_a_stretched_rope_ends_with_its_table(max_model_len, fits, tmp_path):
    """vLLM makes YaRN's table for factor x original positions, whatever it serves."""
    draft = valid_draft("native")
    draft.config["rope_scaling"] = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
    }  # fmt: skip
    engine = {"max_model_len": max_model_len}
    inspection = inspect(draft, tmp_path, engine=engine, draft_window=64)
    assert [error.rule for error in inspection.errors] == (
        [] if fits else ["rope_table_holds_drafted_texts"]
    )
    if not fits:
        assert "lower --max-model-len to 512" in inspection.errors[0].problem.remedy


@pytest.mark.parametrize(("family", "named"), [("native", True), ("mla", False), ("dspark", False)])
def test_the_option_is_named_where_it_can_be_had(family, named, tmp_path):
    draft = valid_draft(family)
    inspection = inspect(draft, tmp_path, engine={"max_model_len": 1 << 16})
    fired = [f for f in inspection.findings if f.rule == "trained_length_covers_max_model_len"]
    assert len(fired) == 1
    assert ("draft_window" in fired[0].problem.remedy) is named
