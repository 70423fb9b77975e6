"""Drafts of sgl-project/SpecForge: written by its exporters, drafted with by its training models.

Bypassed: random choice of training positions, losses, and what needs a compiler (torch.compile, and
flex attention, in whose place stands plain attention under the same mask).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

from tests.peers.chains import Chains
from tests.peers.hooks import draft_own_tokens, until_logits
from tests.peers.texts import TARGET, states, target
from tests.peers.weights import perturb, vocabulary_maps

K = 3
BLOCK = 8
MASK = 1
# What its configs/*.json have in common, at the tiny target's sizes.
_COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}
_KINDS: dict[str, dict[str, Any]] = {
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": 256,
    },
    "peagle": {"architectures": ["PEagleDraftModel"], "model_type": "llama", "num_hidden_layers": 2},
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "block_size": BLOCK,
    },
}


def write(folder: Path, kind: str, *, verifier: str = TARGET, **changes: Any) -> Path:
    """A draft of one of its configs, through its exporter for SGLang (EAGLE-3) or for transformers."""
    from specforge.export.to_hf import export_to_hf
    from specforge.export.to_sglang import export_to_sglang

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = target(verifier).config.vocab_size
    config = _COMMON | _KINDS[kind] | {"vocab_size": vocabulary}
    if kind == "dflash":
        layers = target(verifier).config.num_hidden_layers
        config |= {"num_target_layers": layers, "layer_types": ["full_attention"] * 2}
        config["dflash_config"] = {
            "mask_token_id": MASK,
            "target_layer_ids": [1, layers // 2 - 1, layers - 4],
        }
    if kind == "peagle":
        config["draft_vocab_size"] = vocabulary
    given, state = folder / "given.json", folder / "training_state.pt"
    given.write_text(json.dumps(config | changes))
    model = _model(given)
    perturb(model)
    weights = dict(model.state_dict())
    size = (config | changes).get("draft_vocab_size", vocabulary)
    if "d2t" in weights and size != vocabulary:
        weights["t2d"], weights["d2t"] = vocabulary_maps(vocabulary, size)
    torch.save({"strategy": kind, "draft_state_dict": weights}, state)
    export = export_to_sglang if kind == "eagle3" else export_to_hf
    export(str(state), str(given), str(folder))
    given.unlink()
    state.unlink()
    return folder


def _model(config: Path) -> Any:
    torch._dynamo.config.disable = True
    from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig

    return AutoDraftModel.from_config(AutoDraftModelConfig.from_file(str(config)))


def load(folder: Path) -> Any:
    """The file, in fp32. Read by `from_pretrained`, transformers 5.19 leaves its rope tables unset."""
    model = _model(folder / "config.json").float().eval()
    missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert set(missing) <= {"embed_tokens.weight"}
    assert unexpected == []
    model.owns_embeddings = not missing
    return model


def draft(folder: Path, tokens: tuple[int, ...], verifier: str = TARGET) -> Chains:
    model = load(folder)
    forward = {
        "LlamaForCausalLMEagle3": _eagle3, "PEagleDraftModel": _peagle, "DFlashDraftModel": _dflash,
    }[type(model).__name__]  # fmt: skip
    return forward(model, tokens, verifier)


def _layer_ids(config: Any, verifier: str) -> list[int]:
    """It captures the outputs of the layers 1, N/2 - 1 and N - 4, or of those that the config lists."""
    layers = target(verifier).config.num_hidden_layers
    nested = (getattr(config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
    return [id_ + 1 for id_ in nested or (1, layers // 2 - 1, layers - 4)]


@torch.no_grad()
def _eagle3(model: Any, tokens: tuple[int, ...], verifier: str) -> Chains:
    """Its training loop, each step of which reads the draft's own token instead of the text's."""
    from specforge.algorithms.eagle3.model import OnlineEagle3Model

    class WithoutLosses(OnlineEagle3Model):
        def _acc_and_loss(self, **_: Any) -> tuple[float, ...]:
            return (0.0,) * 7

    if not model.owns_embeddings:
        model.embed_tokens.weight.data = target(verifier).get_input_embeddings().weight.data.float()
    ids = torch.arange(model.draft_vocab_size) + model.d2t
    logits = draft_own_tokens(model, ids)
    inputs = states(tokens, _layer_ids(model.config, verifier), verifier)[:, :-1]
    text = torch.tensor([tokens[1:]])
    everywhere = torch.ones_like(text)
    WithoutLosses(model, length=K)(
        input_ids=text,
        attention_mask=everywhere,
        target=torch.zeros(1, len(tokens) - 1, model.vocab_size),
        loss_mask=everywhere[..., None],
        hidden_states=inputs,
    )
    return Chains.of_logits(torch.stack(logits, dim=1), ids)


def _plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, block_mask: torch.Tensor, **_: Any
) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, block_mask, enable_gqa=True)


@torch.no_grad()
def _peagle(model: Any, tokens: tuple[int, ...], verifier: str) -> Chains:
    """Every row as an anchor, with all its depths that lie inside the text."""
    from specforge.algorithms.peagle.model import OnlinePEagleModel

    rows = len(tokens) - 1
    anchors = torch.cat([torch.arange(rows - depth) for depth in range(K)])
    depths = torch.cat([torch.full((rows - depth,), depth) for depth in range(K)])
    text = torch.tensor([tokens[1:]])
    trainer = OnlinePEagleModel(model, mask_token_id=MASK, num_depths=K)
    trainers, model_of = "specforge.algorithms.peagle.model", "specforge.modeling.draft.peagle"
    with (
        mock.patch(f"{trainers}.generate_cod_sample_indices", return_value=(anchors, depths)),
        mock.patch(f"{trainers}.create_block_mask", create_mask),
        mock.patch(f"{model_of}.compile_friendly_flex_attention", _plain_attention),
    ):
        logits = until_logits(
            trainer,
            model.lm_head,
            input_ids=text,
            attention_mask=torch.ones_like(text),
            target=None,
            loss_mask=torch.ones_like(text),
            hidden_states=states(tokens, _layer_ids(model.config, verifier), verifier)[:, :-1],
        )
    chains = torch.stack([logits[depths == depth][: rows - K + 1] for depth in range(K)], dim=1)
    return Chains.of_logits(chains, torch.arange(model.draft_vocab_size) + model.d2t)


@torch.no_grad()
def _dflash(model: Any, tokens: tuple[int, ...], verifier: str) -> Chains:
    """A block behind every token but the first, up to those whose block ends with the text."""
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel

    model.config._attn_implementation = "sdpa"
    anchors = torch.arange(1, len(tokens) - BLOCK)[None]

    class EveryAnchor(OnlineDFlashModel):
        def _sample_anchor_positions(self, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return anchors, torch.ones_like(anchors, dtype=torch.bool)

    whole = target(verifier)
    trainer = EveryAnchor(
        model, whole.get_output_embeddings(), whole.get_input_embeddings(), MASK,
        block_size=BLOCK, attention_backend="sdpa", num_anchors=anchors.shape[1],
    )  # fmt: skip
    layer_ids = [id_ + 1 for id_ in model.target_layer_ids]
    text = torch.tensor([tokens])
    inputs = states(tokens, layer_ids, verifier)
    hidden = trainer._forward_draft_blocks(text, inputs, torch.ones_like(text))[-1]
    logits = whole.get_output_embeddings()(hidden)[0].view(anchors.shape[1], BLOCK, -1)
    return Chains.of_logits(logits[:, 1:], torch.arange(logits.shape[-1]))
