"""The drafter class of a family that is added as CONTRIBUTING's recipe says, as vLLM loads it."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN
from tests.support.drafting import load
from tests.support.drafts import valid_draft
from tests.support.engine import has_gpu
from tests.support.toy_family.family import SCALE, TOY, registered

pytestmark = [
    pytest.mark.skipif(has_gpu(), reason="builds vLLM's layers on its CPU platform"),
    pytest.mark.usefixtures("single_process_group"),
]


def test_it_is_loaded_and_computes(tmp_path, monkeypatch):
    from vllm.model_executor.models.registry import ModelRegistry

    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    draft = valid_draft("native")
    draft.config |= {"architectures": ["Eagle3ToyForCausalLM"], SCALE: 0.5}
    draft.tensors["feature_norm.weight"] = torch.full((HIDDEN,), 3.0)
    with registered():
        drafter, layer_ids, _, probe = load(tmp_path, draft)
    assert type(drafter).__name__ == TOY.drafters[0].architecture
    states = torch.cat(probe.aux(layer_ids), dim=-1)  # [T, n * Ht]
    fused = drafter.combine_hidden_states(states)
    assert fused.pow(2).mean(-1).sqrt() == pytest.approx(1.5 * torch.ones(len(states)), rel=1e-3)
