# SPDX-License-Identifier: Apache-2.0
"""The tensors that a draft of a given spec consists of, with their shapes.

The parts are what vLLM's drafter classes build, for the families to put together; what these never
read, or what the target may share with the draft, is optional.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_eagle_ext.draft.draft_config import DraftConfig
from vllm_eagle_ext.draft.spec import DraftSpec, Expected

# These stand in place of `weight`, or next to it, in a quantised module.
_QUANTISED = (
    "weight", "weight_packed", "qweight", "weight_scale", "weight_scale_inv", "weight_scale_2",
    "weight_global_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "input_scale",
    "input_global_scale", "scales", "qzeros", "g_idx", "k_scale", "v_scale", "pre_quant_scale",
)  # fmt: skip


def belongs_to_quantised(spec: DraftSpec, name: str, table: Mapping[str, Expected]) -> bool:
    """Say whether a tensor that the table has not is a part of a module that it has."""
    if spec.quantisation is None:
        return False
    module, _, suffix = name.rpartition(".")
    if module.endswith("self_attn"):
        return suffix in ("k_scale", "v_scale")
    return suffix in _QUANTISED and f"{module}.weight" in table


def around_the_layers(
    spec: DraftSpec, config: DraftConfig, target_vocab_size: int
) -> dict[str, Expected]:
    """Return the embeddings, head, vocabulary map and what fuses the target's states."""
    width, n = spec.hidden_size, len(spec.aux_layers.layer_ids)
    reduced = spec.vocabulary.size < target_vocab_size
    table = {
        "norm.weight": Expected((width,)),
        # Shared with the target where the draft has none, which has rules of its own.
        "embed_tokens.weight": Expected((config.vocab_size, width), optional=True),
        "lm_head.weight": Expected((spec.vocabulary.size, width), optional=not reduced),
        # A whole vocabulary needs neither, but most trainers write both.
        "d2t": Expected((spec.vocabulary.size,), optional=not reduced, kind="integer"),
        "t2d": Expected((target_vocab_size,), optional=True, kind="mask"),
    }
    if spec.fuses_aux_states:
        table["fc.weight"] = Expected((width, n * spec.target_hidden_size))
    if spec.fc_norm:
        table |= {f"fc_norm.{k}.weight": Expected((spec.target_hidden_size,)) for k in range(n)}
    if spec.norm_before_fc:
        table["input_norm.weight"] = Expected((n * spec.target_hidden_size,))
    return table


def layer_norms(spec: DraftSpec) -> dict[str, Expected]:
    """Return the norms before attention and MLP, under a layer."""
    width = Expected((spec.hidden_size,))
    return {"input_layernorm.weight": width, "post_attention_layernorm.weight": width}


def fused_qkv(
    spec: DraftSpec, config: DraftConfig, *, columns: int, has_output_bias: bool = True
) -> dict[str, Expected]:
    """Return the tensors of attention with keys and values per head, under a layer.

    Args:
        columns: width of what q, k and v read.
        has_output_bias: `attention_bias` includes o_proj.
    """
    heads, width, gate = spec.heads, spec.hidden_size, spec.gate
    gate_in_q = gate.rows(heads) if gate and gate.module == "q_proj" else 0
    rows = {
        "q_proj": (heads.query * heads.dim + gate_in_q, columns),
        "k_proj": (heads.kv * heads.dim, columns),
        "v_proj": (heads.kv * heads.dim, columns),
        "o_proj": (width, heads.query * heads.dim),
    }
    if gate and gate.module != "q_proj":
        rows[gate.module] = (gate.rows(heads), columns)
    table = {f"self_attn.{name}.weight": Expected(shape) for name, shape in rows.items()}
    if spec.drafter.backbone.norms_heads:
        table |= {f"self_attn.{name}.weight": Expected((heads.dim,)) for name in ("q_norm", "k_norm")}
    if config.attention_bias:
        biased = [name for name in rows if has_output_bias or name != "o_proj"]
        table |= {f"self_attn.{name}.bias": Expected(rows[name][:1]) for name in biased}
    return table


def latent_attention(spec: DraftSpec, config: DraftConfig, *, columns: int) -> dict[str, Expected]:
    """Return the tensors of multi-head latent attention, under a layer.

    A rule checks the config's sizes; a size that is absent counts as 0 here.
    """
    heads, width = config.num_attention_heads, spec.hidden_size
    nope, rotary = config.qk_nope_head_dim or 0, config.qk_rope_head_dim or 0
    value, latent = config.v_head_dim or 0, config.kv_lora_rank or 0
    query_rows = heads * (nope + rotary)
    if config.q_lora_rank:
        query = {
            "q_a_proj.weight": (config.q_lora_rank, columns),
            "q_a_layernorm.weight": (config.q_lora_rank,),
            "q_b_proj.weight": (query_rows, config.q_lora_rank),
        }
    else:
        query = {"q_proj.weight": (query_rows, columns)}
    shapes: dict[str, tuple[int, ...]] = {
        **query,
        "kv_a_proj_with_mqa.weight": (latent + rotary, columns),
        "kv_a_layernorm.weight": (latent,),
        "kv_b_proj.weight": (heads * (nope + value), latent),
        "o_proj.weight": (width, heads * value),
    }
    return {f"self_attn.{name}": Expected(shape) for name, shape in shapes.items()}


def mlp(spec: DraftSpec, config: DraftConfig) -> dict[str, Expected]:
    """Return the gated MLP, under a layer."""
    width, inner = spec.hidden_size, config.intermediate_size
    shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    table = {f"mlp.{name}.weight": Expected(shape) for name, shape in shapes.items()}
    if config.mlp_bias and spec.drafter.backbone.has_mlp_bias:
        table |= {f"mlp.{name}.bias": Expected(shape[:1]) for name, shape in shapes.items()}
    return table


def in_layer(layer: int, *parts: Mapping[str, Expected]) -> dict[str, Expected]:
    """Return the parts of a layer under their whole names."""
    return {f"layers.{layer}.{name}": tensor for part in parts for name, tensor in part.items()}
