"""Config and tensors of a small valid draft, for every family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.checkpoints import (
    DRAFT_VOCAB,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    VOCAB,
    draft_config,
    draft_tensors,
)

BLOCK, MASK_TOKEN = 8, VOCAB - 1
LAYER = "transformer_layer_config"  # of a config in the speculators format
LATENT, ROTARY, NOPE, VALUE = 512, 64, 16, 24  # of the MLA draft; the first two are all a CPU kernel has


@dataclass
class Draft:
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]  # by published name
    method: str
    k: int


def _native(seed: int) -> Draft:
    config = draft_config(num_aux=3, post_norm=False)
    return Draft(config, draft_tensors(num_aux=3, post_norm=False, seed=seed), "eagle3", 3)


def _post_norm(seed: int) -> Draft:
    config = draft_config(num_aux=5, post_norm=True)
    return Draft(config, draft_tensors(num_aux=5, post_norm=True, seed=seed), "eagle3", 3)


def _qwen3(seed: int) -> Draft:
    draft = _native(seed)
    draft.config |= {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    draft.tensors |= {f"midlayer.self_attn.{name}_norm.weight": scales(HEAD_DIM) for name in "qk"}
    return draft


def _gated(seed: int) -> Draft:
    """Post-norm, five aux layers, the gate's rows behind each head's query."""
    draft = _post_norm(seed)
    draft.config |= {"attn_output_gate": True, "gate_layout": "interleaved"}
    draft.tensors["midlayer.self_attn.q_proj.weight"] = matrix(2 * HEADS * HEAD_DIM, 2 * HIDDEN)
    return draft


def _quantised(seed: int) -> Draft:
    """Eight-bit weights and activations; the fusing projection is left plain, by its run-time name."""
    draft = _native(seed)
    scheme = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**scheme, "strategy": "channel", "dynamic": False},
        "input_activations": {**scheme, "strategy": "token", "dynamic": True},
    }
    draft.config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "model.fc"],
    }
    for name in [n for n in draft.tensors if n.endswith("_proj.weight")]:
        weight = draft.tensors[name].float()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        draft.tensors[name] = (weight / scale).round().to(torch.int8)
        draft.tensors[f"{name}_scale"] = scale
    return draft


def _mla(seed: int) -> Draft:
    """With the whole vocabulary of the target, as the Kimi heads have it."""
    draft = _native(seed)
    draft.config |= {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "draft_vocab_size": VOCAB,
        "num_key_value_heads": HEADS,
        "q_lora_rank": LATENT,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROTARY,
        "v_head_dim": VALUE,
    }
    del draft.config["head_dim"]
    attention = {
        "q_a_proj": matrix(LATENT, 2 * HIDDEN),
        "q_a_layernorm": scales(LATENT),
        "q_b_proj": matrix(HEADS * (NOPE + ROTARY), LATENT),
        "kv_a_proj_with_mqa": matrix(LATENT + ROTARY, 2 * HIDDEN),
        "kv_a_layernorm": scales(LATENT),
        "kv_b_proj": matrix(HEADS * (NOPE + VALUE), LATENT),
        "o_proj": matrix(HIDDEN, HEADS * VALUE),
    }
    kept = {
        name: tensor
        for name, tensor in draft.tensors.items()
        if "self_attn." not in name and name not in ("d2t", "t2d")
    }
    mla = {f"midlayer.self_attn.{name}.weight": tensor for name, tensor in attention.items()}
    draft.tensors = kept | mla | {"lm_head.weight": matrix(VOCAB, HIDDEN)}
    return draft


def _norm_before_fc(seed: int) -> Draft:
    draft = _native(seed)
    draft.config["norm_before_fc"] = True
    draft.tensors["input_norm.weight"] = scales(3 * HIDDEN)
    return draft


def _speculators(seed: int) -> Draft:
    draft = _native(seed)
    layer = dict(draft.config)
    for key in ("architectures", "eagle_config", "draft_vocab_size", "rope_theta"):
        del layer[key]
    draft.config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "norm_before_residual": False,
        "target_hidden_size": None,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"},
        },
        LAYER: layer | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    }
    draft.tensors = {
        name.replace("midlayer.", "layers.0."): tensor for name, tensor in draft.tensors.items()
    }
    draft.tensors["embed_tokens.weight"] = matrix(VOCAB, HIDDEN)
    return draft


def _p_eagle(seed: int) -> Draft:
    """Two layers, so that one reads the embeddings and one does not."""
    draft = _speculators(seed)
    draft.config |= {
        "architectures": ["PEagleDraftModel"],
        "speculators_model_type": "peagle",
        "mask_token_id": MASK_TOKEN,
    }
    draft.config[LAYER]["num_hidden_layers"] = 2
    draft.tensors["mask_hidden"] = matrix(1, 3 * HIDDEN)[None]
    draft.tensors |= _layer(1)
    return draft


def as_specforge(draft: Draft) -> None:
    """A P-EAGLE draft of speculators' as SpecForge exports it, with the mask token written into it."""
    layer = draft.config.pop(LAYER)
    kept = ("draft_vocab_size", "norm_before_residual", "mask_token_id", "fc_norm", "norm_output")
    root = {key: draft.config[key] for key in (*kept, "norm_before_fc") if key in draft.config}
    ids = [layer_id - 1 for layer_id in draft.config["eagle_aux_hidden_state_layer_ids"]]
    draft.config = {
        **layer,
        **root,
        "architectures": ["PEagleDraftModel"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids},
    }


def _no_aux(seed: int) -> Draft:
    draft = _native(seed)
    draft.config["eagle_config"] = {"use_aux_hidden_state": False}
    del draft.tensors["fc.weight"]
    return draft


def _dflash(_seed: int) -> Draft:
    """With the target's embeddings and head, as z-lab publishes them."""
    config = draft_config(
        num_aux=3,
        post_norm=False,
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        num_hidden_layers=2,
        layer_types=["full_attention"] * 2,
        dflash_config={"target_layer_ids": [1, 3, 5], "mask_token_id": MASK_TOKEN},
        block_size=BLOCK,
    )
    del config["eagle_config"], config["draft_vocab_size"]
    tensors = {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        "hidden_norm.weight": scales(HIDDEN),
        "norm.weight": scales(HIDDEN),
    }
    for layer in range(2):
        tensors |= _layer(layer)
        tensors |= {f"layers.{layer}.self_attn.{name}_norm.weight": scales(HEAD_DIM) for name in "qk"}
    return Draft(config, tensors, "dflash", BLOCK - 1)


def _dflash_speculators(seed: int) -> Draft:
    draft = _dflash(seed)
    layer = dict(draft.config)
    for key in ("architectures", "dflash_config", "block_size"):
        del layer[key]
    draft.config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [2, 4, 6],
        "mask_token_id": MASK_TOKEN,
        "block_size": BLOCK,
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK - 1}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"},
        },
        LAYER: layer,
    }
    return draft


def _layer(index: int) -> dict[str, torch.Tensor]:
    """One that reads the residual stream alone."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTER, HIDDEN),
        "mlp.up_proj": (INTER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTER),
    }
    tensors = {name: matrix(*shape) for name, shape in shapes.items()}
    tensors |= {name: scales(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
    return {f"layers.{index}.{name}.weight": tensor for name, tensor in tensors.items()}


def matrix(rows: int, columns: int) -> torch.Tensor:
    return (torch.randn(rows, columns) * columns**-0.5).bfloat16()


def scales(size: int) -> torch.Tensor:
    return (1 + 0.3 * torch.randn(size)).bfloat16()


BUILDERS: dict[str, Callable[[int], Draft]] = {
    "native": _native,
    "post-norm": _post_norm,
    "qwen3": _qwen3,
    "gated": _gated,
    "quantised": _quantised,
    "mla": _mla,
    "norm_before_fc": _norm_before_fc,
    "speculators": _speculators,
    "p-eagle": _p_eagle,
    "no_aux": _no_aux,
    "dflash": _dflash,
    "dflash-speculators": _dflash_speculators,
}
