"""Beside a target with adapters a draft embeds without them."""

from __future__ import annotations

import pytest
import torch

from tests.support.drafting import difference, load, module_logits
from tests.support.drafts import valid_draft

pytestmark = pytest.mark.promise("LoRA on the target: a draft reads its embeddings without adapters")


@pytest.mark.parametrize("family", ["native", "post-norm", "gated", "dflash"])
def test_the_targets_adapted_embeddings_are_read_without_adapters(tmp_path, family):
    """V1 shares them adapted; their rows of adapters are those of the target's batch."""
    from vllm.lora.layers import VocabParallelEmbeddingWithLoRA

    plain, layer_ids, _, probe = load(tmp_path / "plain", valid_draft(family))
    logits = module_logits(plain, family, layer_ids, probe)
    adapted, *_ = load(tmp_path / "adapted", valid_draft(family))
    adapted.model.embed_tokens = VocabParallelEmbeddingWithLoRA(adapted.model.embed_tokens)
    with pytest.raises(AttributeError, match="punica_wrapper"):  # as vLLM's class would read them
        adapted.model.embed_tokens(torch.zeros(1, dtype=torch.int64))
    assert difference(module_logits(adapted, family, layer_ids, probe), logits) == 0
