# SPDX-License-Identifier: Apache-2.0
"""DFlash: a block of tokens in one pass, conditioned only on the target's states.

DFlash2 and DSpark add a second head, and are served by vLLM's own classes.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_eagle_ext.draft.attention import LayerAttention, sliding_layers
from vllm_eagle_ext.draft.draft_config import DraftConfig, Format
from vllm_eagle_ext.draft.expected_tensors import (
    around_the_layers,
    fused_qkv,
    in_layer,
    layer_norms,
    mlp,
)
from vllm_eagle_ext.draft.layer_ids import OUTPUT_IDS_KEY
from vllm_eagle_ext.draft.rules.proposal_heads import CONFIDENCE
from vllm_eagle_ext.draft.spec import DraftSpec, Expected, Family, IdConvention, KeyEffect
from vllm_eagle_ext.families.dflash.names import DFLASH2_DRAFTER, DFLASH_DRAFTER, DSPARK_DRAFTER
from vllm_eagle_ext.families.drafter_classes import Backbone

_WRITERS = "vllm_eagle_ext.families.dflash.config_writer"
_REFERENCES = "vllm_eagle_ext.measure.reference.dflash"


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


def _dflash2_tensors(
    spec: DraftSpec, config: DraftConfig, target_vocab_size: int
) -> dict[str, Expected]:
    """Return DFlash2's tensors. A size that is missing counts as 1 here; a rule reports it."""
    taps, group, rank = (
        config.of_heads(key) or 1 for key in ("conv_kernel_size", "conv_group_size", "selector_rank")
    )
    width = spec.hidden_size
    table = _dflash_tensors(spec, config, target_vocab_size)
    for layer in range(spec.num_layers):
        for part in ("attention_conv", "mlp_conv"):
            place = f"layers.{layer}.{part}"
            table[f"{place}.base_kernel"] = Expected((2, taps, width))
            rows = 2 * taps * (width // group)
            table[f"{place}.kernel_projection.weight"] = Expected((rows, width))
    for name in ("predecessor", "successor"):
        table[f"candidate_selector.{name}_codebook"] = Expected((config.vocab_size, rank))
    table["candidate_selector.hidden_projection.weight"] = Expected((rank, width))
    return table


def _dspark_tensors(spec: DraftSpec, config: DraftConfig, target_vocab_size: int) -> dict[str, Expected]:
    """Return DSpark's tensors. A rule reports a part of a confidence head, which may be left out."""
    rank, reads = config.of_heads("markov_rank") or 1, config.of_heads("confidence_head_with_markov")
    columns = spec.hidden_size + (rank if reads else 0)
    table = _dflash_tensors(spec, config, target_vocab_size)
    return table | {
        "markov_head.markov_w1.weight": Expected((config.vocab_size, rank)),
        "markov_head.markov_w2.weight": Expected((spec.vocabulary.size, rank)),
        f"{CONFIDENCE}.weight": Expected((1, columns), optional=True),
        f"{CONFIDENCE}.bias": Expected((1,), optional=True),
    }


def _samples_the_anchor(config: DraftConfig, format_: Format) -> bool:
    """Decide as trained: DeepSpec and SpecForge draft from the first position, speculators as stated."""
    for value in (config.sample_from_anchor, config.block_config.sample_from_anchor):
        if value is not None:
            return value
    if config.dspark_bonus_anchor is not None:
        return not config.dspark_bonus_anchor
    return format_ == "published"


DFLASH = Family(
    name="dflash",
    title="DFlash",
    drafters=(DFLASH_DRAFTER,),
    id_convention=IdConvention(places=(f"dflash_config.{OUTPUT_IDS_KEY}",), is_required=True),
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
    config_writer=f"{_WRITERS}:write",
    model_types={"dflash": f"{_WRITERS}:register"},  # TorchSpec's
    reference=f"{_REFERENCES}:DFlashReference",
)
_OF_THE_LAYERS = {key: of for key, of in DFLASH.own_keys.items() if key != "input_embedding_scale"}

DFLASH2 = replace(
    DFLASH,
    name="dflash2",
    title="DFlash2",
    drafters=(DFLASH2_DRAFTER,),
    tensors=_dflash2_tensors,
    plain_modules=(*DFLASH.plain_modules, "candidate_selector."),
    runs_on_v2_only=True,
    config_writer=f"{_WRITERS}:write_dflash2",
    model_types={},
    reference=f"{_REFERENCES}:DFlash2Reference",
)
DSPARK = replace(
    DFLASH,
    name="dspark",
    title="DSpark",
    drafters=(DSPARK_DRAFTER,),
    id_convention=replace(
        DFLASH.id_convention,
        places=(*DFLASH.id_convention.places, "dspark_config.target_layer_ids"),
    ),
    tensors=_dspark_tensors,
    own_keys=_OF_THE_LAYERS,
    identity_keys={"projector_type": "dspark"},
    plain_modules=(*DFLASH.plain_modules, "markov_head.markov_w1.", "confidence_head."),
    samples_the_anchor=_samples_the_anchor,
    runs_on_v2_only=True,
    widens_inputs=True,
    config_writer=f"{_WRITERS}:write_dspark",
    model_types={},
    reference=f"{_REFERENCES}:DSparkReference",
)

FAMILIES = (DFLASH, DFLASH2, DSPARK)
