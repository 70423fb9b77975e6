# SPDX-License-Identifier: Apache-2.0
"""DFlash: a block of tokens in one pass, conditioned only on the target's states."""

from __future__ import annotations

from vllm_eagle_ext.draft.attention import LayerAttention, sliding_layers
from vllm_eagle_ext.draft.aux_layers import IdConvention
from vllm_eagle_ext.draft.draft_config import DraftConfig, Format
from vllm_eagle_ext.draft.expected_tensors import (
    around_the_layers,
    fused_qkv,
    in_layer,
    layer_norms,
    mlp,
)
from vllm_eagle_ext.draft.layer_ids import OUTPUT_IDS_KEY
from vllm_eagle_ext.draft.spec import DraftSpec, Expected, Family, KeyEffect
from vllm_eagle_ext.families.dflash.names import DFLASH_DRAFTER
from vllm_eagle_ext.families.drafter_classes import Backbone

_PACKAGE = "vllm_eagle_ext.families.dflash"


def _block_layers(
    config: DraftConfig, backbone: Backbone, format_: Format
) -> tuple[LayerAttention, ...]:
    """Return one entry per layer; a sliding layer without a window gets None, which a rule reports.

    One difference from vLLM: speculators trains full layers bidirectionally and only windowed ones
    causally, while vLLM makes one flag for all layers of it.
    """
    slides, block = sliding_layers(config, backbone), config.block_config
    forced = bool(block.use_swa) and not any(slides)
    window = block.swa_window_size or config.sliding_window
    blanket = _blanket_causality(config, format_)
    return tuple(
        LayerAttention(
            window if forced or is_sliding else None, is_sliding if blanket is None else blanket
        )
        for is_sliding in slides
    )


def _blanket_causality(config: DraftConfig, format_: Format) -> bool | None:
    """Say whether all layers are causal, or None: causal where the layer slides."""
    if format_ == "speculators":
        return False if config.sliding_window_non_causal else None
    return config.block_config.causal if config.is_causal is None else config.is_causal


def _dflash_tensors(spec: DraftSpec, config: DraftConfig, target_vocab_size: int) -> dict[str, Expected]:
    table = around_the_layers(spec, config, target_vocab_size)
    table["hidden_norm.weight"] = Expected((spec.hidden_size,))
    has_sinks = config.block_config.attention_sink_bias
    for layer in range(spec.num_layers):
        attention = fused_qkv(spec, config, columns=spec.hidden_size)
        if has_sinks:
            attention["self_attn.attention_sink_bias"] = Expected((spec.heads.query,))
        table |= in_layer(layer, layer_norms(spec), attention, mlp(spec, config))
    return table


DFLASH = Family(
    name="dflash",
    title="DFlash",
    drafters=(DFLASH_DRAFTER,),
    layer_ids=IdConvention(places=(f"dflash_config.{OUTPUT_IDS_KEY}",), is_required=True),
    read_layers=_block_layers,
    tensors=_dflash_tensors,
    own_keys={
        "input_embedding_scale": KeyEffect("scales the embeddings", (None, 1)),
        "attention_value_scale": KeyEffect("scales the values of attention", (None, 1)),
        "use_swa": KeyEffect("gives each layer a window", (None, False, 0)),
        "is_neox_style": KeyEffect("rotates neighbouring channels together", (None, True)),
    },
    plain_modules=("embed_tokens.", "lm_head."),
    asks_for_windows=lambda config: bool(config.block_config.use_swa),
    drafts_in_parallel=True,
    fills_a_block=True,
    caches_target_states=True,
    mixes_windows_on_v2_only=True,
    config_writer=f"{_PACKAGE}.config_writer:write",
    model_types={"dflash": f"{_PACKAGE}.config_writer:register"},  # TorchSpec's
    reference="vllm_eagle_ext.measure.reference.dflash:DFlashReference",
)

FAMILIES = (DFLASH,)
