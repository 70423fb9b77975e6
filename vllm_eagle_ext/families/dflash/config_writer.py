# SPDX-License-Identifier: Apache-2.0
"""Writes what vLLM reads of a DFlash draft next to what it reads of every draft.

Also the config class of drafts that call their model type `dflash` (TorchSpec), which has none.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, Qwen3Config

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.draft_config import ProposalHeads


class DFlashEagleExtConfig(Qwen3Config):
    """A Qwen3 layer's keys; those of the block are kept as they stand."""

    model_type = "dflash"


def register() -> None:
    """Register the config once; a second call changes nothing. Workers need no registration: they
    receive the config as an object."""
    AutoConfig.register(DFlashEagleExtConfig.model_type, DFlashEagleExtConfig, exist_ok=True)


def write(config: Any, case: Case) -> None:
    """Write what vLLM and the drafter class read of `dflash_config`.

    The published `target_layer_ids` stay as they are: both runners take the layer ids that are written
    for every draft first, and the width of `fc` follows from these.

    Args:
        config: vLLM's SpeculativeConfig, whose draft config is changed in place.
        case: the draft that was checked.
    """
    hf_config, spec = config.draft_model_config.hf_config, case.spec
    nested = dict(getattr(hf_config, "dflash_config", None) or {})
    nested["mask_token_id"] = spec.mask_token_id
    nested["input_embedding_scale"] = spec.embedding_scale
    if spec.format == "speculators":
        # Without vLLM's blanket flags causality goes by layer type.
        nested.pop("causal", None)
        vars(hf_config).pop("is_causal", None)
        if not any(layer.causal for layer in spec.layers):
            nested["causal"] = False
    if spec.draft_window is not None:  # without the flag vLLM takes windowed layers for causal ones
        nested["causal"] = spec.layers[0].causal
        nested.pop("swa_window_size", None)
    hf_config.dflash_config = nested
    # vLLM 0.32 raises this for EAGLE-3 drafts only: positions beyond it lie outside the rope table.
    length = getattr(hf_config, "max_position_embeddings", None) or 0
    hf_config.max_position_embeddings = max(length, case.request.max_model_len or 0)


def write_dflash2(config: Any, case: Case) -> None:
    """Do what `write` does, and write convolution's and selector's sizes to `dflash_config`."""
    write(config, case)
    nested = config.draft_model_config.hf_config.dflash_config
    nested.update(_heads(case))
    nested["sample_from_anchor"] = False


def write_dspark(config: Any, case: Case) -> None:
    """Do what `write` does, and write the Markov and confidence head's sizes at top level."""
    write(config, case)
    hf_config = config.draft_model_config.hf_config
    hf_config.dflash_config.pop("sample_from_anchor", None)  # vLLM refuses it here, whatever the method
    hf_config.sample_from_anchor = case.spec.samples_anchor
    hf_config.mask_token_id = case.spec.mask_token_id
    hf_config.block_size = case.spec.block_size
    for key, value in _heads(case).items():
        setattr(hf_config, key, value)


def _heads(case: Case) -> dict[str, Any]:
    values = {key: case.config.of_heads(key) for key in ProposalHeads.model_fields}
    return {key: value for key, value in values.items() if value is not None}
