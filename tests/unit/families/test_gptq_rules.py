"""GPTQ drafts whose rules leave modules plain, by the names that the checkpoint has: vLLM's modules
against the reference with dequantised weights."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import LAYERS
from tests.support.drafting import apart_from_reference
from tests.support.drafts import valid_draft
from tests.support.quantised_drafts import gptq_draft

BOUND = 0.05  # in bf16, as of other four-bit drafts
# Group sizes in the files, None: plain, and the rules that say so.
MLP = ({r"mlp\.": None}, {r"-:.*\.(gate|up|down)_proj": {}})
FIRST_LAYER = ({r"layers\.0\.": None}, {r"-:.*layers\.0\..*": {}})
# Layers of another model, which have the numbers of this draft's at run time.
OTHERS = ({}, {rf"-:.*layers\.({LAYERS}|{LAYERS + 1})\..*": {}})


@pytest.mark.parametrize(
    ("family", "groups", "rules"),
    [
        *((family, *MLP) for family in ("native", "qwen3", "dflash")),
        ("dflash", *FIRST_LAYER),
        ("dflash", *OTHERS),
    ],
)
def test_rules_by_the_checkpoints_names(family, groups, rules, tmp_path):
    quantised = gptq_draft(valid_draft(family), groups, rules)
    assert apart_from_reference(tmp_path, family, quantised.draft, quantised.dequantised) < BOUND


def test_scales_of_another_group_are_another_draft(tmp_path):
    """Negative control of the comparison."""
    quantised = gptq_draft(valid_draft("native"), *MLP)
    for part in "qkv":
        scales = quantised.draft.tensors[f"midlayer.self_attn.{part}_proj.scales"]
        scales.copy_(scales.flip(0))
    assert apart_from_reference(tmp_path, "native", quantised.draft, quantised.dequantised) > 2 * BOUND
