"""GPTQ drafts whose rules give single modules another group size, or leave them plain, by the names that
the checkpoint has: vLLM's modules against the reference with dequantised weights."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import LAYERS
from tests.support.drafting import apart_from_reference, load
from tests.support.drafts import valid_draft
from tests.support.quantised_drafts import Quantised, gptq_draft
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.start import apply

BOUND = 0.05  # in bf16, as of other four-bit drafts
WIDE = {"group_size": 64}
ATTENTION = {r"[qkv]_proj": 64}
# Group sizes in the files, and the rules that say so.
RULES = {
    "parts": (ATTENTION, {r"+:.*\.[qkv]_proj$": WIDE}),
    "each of them": (ATTENTION, {rf".*self_attn\.{part}_proj": WIDE for part in "qkv"}),
    "first of two": (ATTENTION, {r"+:.*\.[qkv]_proj": WIDE, r"+:.*": {"group_size": 32}}),
    "not fused": ({r"o_proj": 64}, {r"+:.*\.o_proj": WIDE}),
    "left out": ({r"mlp\.": None}, {r"-:.*\.(gate|up|down)_proj": {}}),
    "left out, the rest wide": ({r"mlp\.": None, "_proj": 64}, {r"-:.*mlp": {}, r"+:.*_proj": WIDE}),
}
# The same by layers, of which a DFlash draft has two.
BY_LAYER = {
    "second": ({r"layers\.1\.self_attn": 64}, {r"+:.*layers\.1\.self_attn\.": WIDE}),
    "first left out": ({r"layers\.0\.": None}, {r"-:.*layers\.0\..*": {}}),
    # Layers of another model, which have the numbers of this draft's at run time.
    "others": ({}, {rf"+:.*layers\.({LAYERS}|{LAYERS + 1})\.self_attn": WIDE}),
    "others left out": ({}, {rf"-:.*layers\.({LAYERS}|{LAYERS + 1})\..*": {}}),
}
CASES = [(family, name) for family in ("native", "qwen3", "dflash") for name in RULES]
CASES += [("mla", "not fused"), *(("dflash", name) for name in BY_LAYER)]


def draft_of(family: str, name: str) -> Quantised:
    groups, rules = (RULES | BY_LAYER)[name]
    return gptq_draft(valid_draft(family), groups, rules)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_rules_by_the_checkpoints_names(family, name, tmp_path):
    found = draft_of(family, name)
    assert apart_from_reference(tmp_path, family, found.draft, found.dequantised) < BOUND


AS_BEFORE = [
    ("native", "parts"), ("qwen3", "first of two"), ("dflash", "each of them"),
    *(("dflash", name) for name in BY_LAYER if name != "first left out"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name"), AS_BEFORE)
def test_rules_as_published_name_other_modules_at_run_time(family, name, monkeypatch, tmp_path):
    """Negative control: what is quantised is listed by vLLM's names, the rules are the file's."""
    named = apply.named_for_vllm
    monkeypatch.setattr(
        apply,
        "named_for_vllm",
        lambda case: named(case) | {"dynamic": case.config.quantization_config["dynamic"]},
    )
    with pytest.raises((UnsupportedDraftError, AssertionError, KeyError, ValueError)):
        load(tmp_path, draft_of(family, name).draft)


def test_scales_of_another_group_are_another_draft(tmp_path):
    """Negative control of the comparison."""
    found = draft_of("native", "parts")
    for part in "qkv":
        scales = found.draft.tensors[f"midlayer.self_attn.{part}_proj.scales"]
        scales.copy_(scales.flip(0))
    assert apart_from_reference(tmp_path, "native", found.draft, found.dequantised) > 2 * BOUND
