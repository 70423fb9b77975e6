"""The reference of DFlash drafts, as it is loaded, against vLLM's module, as preflight resolves it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.forward_context import override_forward_context

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS
from tests.support.drafting import BOUND, ROWS, STEPS, Probe, difference, load, module_logits
from tests.support.drafts import Draft, inspect, valid_draft
from tests.unit.measure.reference.layers import LLAMA3, YARN, rope, tiny_target
from vllm_eagle_ext.measure.reference.published import load_reference


def attention_bias(draft: Draft) -> None:
    draft.config["attention_bias"] = True
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    for layer in range(2):
        for name, size in rows.items():
            draft.tensors[f"layers.{layer}.self_attn.{name}_proj.bias"] = torch.randn(size)


def window(draft: Draft) -> None:
    draft.config |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5}


def listed_otherwise(draft: Draft) -> None:
    draft.config["dflash_config"]["target_layer_ids"] = [5, 1, 3]


def value_scale(draft: Draft) -> None:
    draft.config["dflash_config"]["attention_value_scale"] = 0.4


CHANGES: dict[str, Callable[[Draft], None]] = {
    "yarn": rope("rope_parameters", YARN),
    "yarn_betas": rope("rope_scaling", YARN | {"beta_fast": 16.0, "beta_slow": 2.0}),
    "llama3": rope("rope_parameters", LLAMA3),
    "attention_bias": attention_bias,
    "window": window,
    "listed_otherwise": listed_otherwise,
    "value_scale": value_scale,
    "pairs": lambda draft: draft.config.update(is_neox_style=False),
}


def logits(draft: Draft, folder, probe: Probe) -> torch.Tensor:
    """[STEPS, V] of the reference."""
    spec, target = inspect(draft, folder).spec, tiny_target()
    target.get_input_embeddings().weight.data = probe.embed_tokens
    target.get_output_embeddings().weight.data = probe.lm_head
    walk: Any = load_reference(spec, folder, target)
    assert len(probe.layer_ids) == LAYERS + 1
    states = [state[:ROWS] for state in probe.aux(spec.aux_layers.layer_ids)]
    with torch.inference_mode():
        return walk.logits(walk.context(states), int(probe.tokens[0]), STEPS)


@pytest.mark.parametrize("change", CHANGES)
def test_logits(change, tmp_path):
    draft = valid_draft("dflash")
    CHANGES[change](draft)
    drafter, layer_ids, path, probe = load(tmp_path, draft)
    theirs = module_logits(drafter, "dflash", layer_ids, probe)
    assert difference(theirs, logits(draft, path, probe)) < BOUND
    plain = logits(valid_draft("dflash"), tmp_path / "plain", probe)
    assert difference(theirs, plain) > 10 * BOUND


@pytest.mark.parametrize("rows", [1, 1 + STEPS])
def test_a_block_without_masks_runs_no_layer(tmp_path, monkeypatch, rows):
    """V1's with K = 0, of which nothing is read."""
    drafter, *_ = load(tmp_path, valid_draft("dflash"))
    ran: list[int] = []
    monkeypatch.setattr(drafter.model, "forward", lambda ids, *_: ran.append(len(ids)) or ids)
    metadata = {
        name: SimpleNamespace(max_query_len=rows) for name in drafter.get_draft_kv_cache_layer_names()
    }
    blocks = torch.zeros(3 * rows, dtype=torch.int64)
    with override_forward_context(SimpleNamespace(attn_metadata=metadata)):
        hidden = drafter(blocks, blocks)
    assert ran == ([] if rows == 1 else [3 * rows])
    if rows == 1:
        assert hidden[torch.empty(0, dtype=torch.int32)].shape == (0, HIDDEN)
