"""Speculators' block drafts whose config calls their layers Llama's: they are Qwen3's all the same."""

from __future__ import annotations

import pytest

from tests.support.drafting import BOUND, difference, load, module_logits, reference_logits
from tests.support.drafts import LAYER, valid_draft
from tests.support.triton_on_cpu import norm_each_layers_keys


@pytest.mark.parametrize("family", ["dflash-speculators", "dspark-speculators"])
def test_they_draft_what_the_reference_drafts(family, tmp_path, monkeypatch):
    norm_each_layers_keys(monkeypatch.setattr)
    draft, another = valid_draft(family), valid_draft(family, seed=1)
    for each in (draft, another):
        each.config[LAYER]["model_type"] = "llama"
    drafter, layer_ids, path, probe = load(tmp_path / "llama", draft)
    expected = reference_logits(path, family, layer_ids, probe)
    assert difference(module_logits(drafter, family, layer_ids, probe), expected) < BOUND
    drafter, *_ = load(tmp_path / "another", another)  # negative control
    assert difference(module_logits(drafter, family, layer_ids, probe), expected) > 10 * BOUND
