"""The references of DFlash2 and DSpark against vLLM's own modules, along a greedy draft."""

from __future__ import annotations

import pytest
import torch

from tests.support.drafting import BOUND, ROWS, load
from tests.support.drafts import VLLMS, valid_draft
from tests.support.second_head_scores import drafted, of_reference, of_vllm
from tests.support.triton_on_cpu import norm_each_layers_keys
from tests.unit.measure.reference.layers import tiny_target


@pytest.fixture(autouse=True)
def right_norms(monkeypatch):
    norm_each_layers_keys(monkeypatch.setattr)


@pytest.mark.parametrize("family", VLLMS)
def test_scores_and_tokens(family, tmp_path):
    draft = valid_draft(family)
    drafter, layer_ids, path, probe = load(tmp_path, draft)
    expected, samples_anchor = of_reference(draft, path, tiny_target(), probe)
    states = torch.cat(probe.aux(layer_ids), dim=-1)[:ROWS]
    states = states.to(drafter.model.embed_tokens.weight.dtype)
    actual = of_vllm(drafter, family, samples_anchor, states, probe)
    assert (actual[1] == expected[1]).all()
    assert (actual[0] - expected[0]).abs().max() < BOUND * expected[0].abs().max()
    assert drafted(actual) == drafted(expected)


# Tensor -> whether it is one of the second head's, which a reference without it would not need.
HEADS = {
    "dflash2": (
        "attention_conv.base_kernel",
        "mlp_conv.kernel_projection",
        "predecessor",
        "hidden_proj",
    ),
    "dspark": ("markov_w1", "markov_w2"),
    "dspark-speculators": ("markov_w1", "markov_w2"),
}


@pytest.mark.parametrize(("family", "part"), [(f, part) for f, parts in HEADS.items() for part in parts])
def test_the_second_head_is_computed_with(family, part, tmp_path):
    """Negative control: the reference of a draft in which a tensor of it is another one."""
    draft, changed = valid_draft(family), valid_draft(family)
    names = [name for name in draft.tensors if part in name]
    for name in names:
        changed.tensors[name] = changed.tensors[name].flip(-1)
    probe = load(tmp_path / "valid", draft)[-1]
    (scores, _), _ = of_reference(draft, tmp_path / "valid" / "draft", tiny_target(), probe)
    load(tmp_path / "changed", changed)
    (others, _), _ = of_reference(changed, tmp_path / "changed" / "draft", tiny_target(), probe)
    assert names
    assert (scores - others).abs().max() > 10 * BOUND
