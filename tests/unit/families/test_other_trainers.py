"""What trainers write otherwise, and targets with padded tables: drafts are those of the plain file."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN, LAYERS, VOCAB, write_target
from tests.support.drafter import build, resolve, resolve_for_v2
from tests.support.drafting import load, module_logits
from tests.support.drafts import VLLMS, valid_draft, write

WINDOWS = ["sliding_attention", "full_attention"] * (LAYERS // 2)  # of a target
PADDING = 32  # rows


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("native", {"architectures": ["LlamaEagle3DraftModel"], "num_hidden_layers": LAYERS}),
        ("native", {"architectures": ["GptOssEagle3DraftModel"], "model_type": "llama"}),
        ("native", {"num_hidden_layers": LAYERS, "layer_types": WINDOWS, "sliding_window": 2}),
        ("mla", {"architectures": ["DeepseekV3Eagle3DraftModel"], "num_hidden_layers": LAYERS}),
        ("qwen3", {"architectures": ["Qwen3Eagle3Model"]}),
        ("dflash", {"architectures": ["Qwen3DFlashDraftModel"]}),
        ("dflash", {"architectures": ["QwenDFlashDraftModel"]}),
    ],
)
def test_what_other_trainers_write_loads_as_the_plain_draft(tmp_path, family, changes):
    """Names that vLLM does not know, and the target's depth and layer types in the draft's config."""
    draft = valid_draft(family)
    drafter, layer_ids, _, probe = load(tmp_path / "plain", draft)
    plain = module_logits(drafter, family, layer_ids, probe)
    draft.config |= changes
    named, named_ids, _, _ = load(tmp_path / "named", draft)
    config = named.config
    assert config.num_hidden_layers == len(named.model.layers) == drafter.config.num_hidden_layers
    assert len(getattr(config, "layer_types", None) or config.num_hidden_layers * [0]) == len(
        named.model.layers
    )
    assert torch.equal(module_logits(named, family, named_ids, probe), plain)


@pytest.mark.parametrize(
    ("family", "own_embeddings"),
    [
        *((name, own) for name in ("native", "qwen3", "mla", "p-eagle", "dflash") for own in (0, 1)),
        ("dspark-speculators", 0),
    ],
)  # fmt: skip
def test_a_padded_target_is_drafted_for_as_before(tmp_path, family, own_embeddings):
    """The target's tables have rows more than the draft's vocabulary; none of them is proposed."""
    draft = valid_draft(family)
    if own_embeddings:
        draft.tensors["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN).bfloat16()
    drafter, layer_ids, _, probe = load(tmp_path / "plain", draft)
    plain = module_logits(drafter, family, layer_ids, probe)
    speculative = {"method": draft.method, "num_speculative_tokens": draft.k}
    speculative |= {"parallel_drafting": True} if family == "p-eagle" else {}
    path = write(draft, tmp_path / "padded" / "draft")
    target = write_target(tmp_path / "padded" / "target", vocab_size=VOCAB + PADDING)
    made_by = resolve_for_v2 if family in VLLMS else resolve
    config = made_by(path, target, torch.float32, speculative)
    # Rows that would win, were they looked at.
    tables = [torch.cat([table, 9 + table[:PADDING]]) for table in (probe.embed_tokens, probe.lm_head)]
    padded = module_logits(build(config, path, torch.float32, *tables), family, layer_ids, probe)
    if family not in VLLMS:  # whose samplers take narrower logits as they are
        assert padded.shape == (len(plain), VOCAB + PADDING)
    assert torch.isneginf(padded[:, VOCAB:]).all()
    torch.testing.assert_close(padded[:, :VOCAB], plain)
