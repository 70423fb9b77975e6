# SPDX-License-Identifier: Apache-2.0
"""Refuses valid drafts that read a state which their target, as vLLM serves it, cannot hand out."""

from __future__ import annotations

from vllm_eagle_ext.checkpoint import DraftSpec
from vllm_eagle_ext.errors import UnsupportedTargetError

# On vLLM's DeepSeek-V2 layers, which add a residual that is not there yet at layer 0's input (0.32).
WITHOUT_EMBEDDINGS = frozenset(
    {
        "DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)  # fmt: skip


def refuse_embeddings(architecture: str, spec: DraftSpec) -> None:
    """Refuse a draft that reads the embeddings of a target whose first layer fails there.

    Raises:
        UnsupportedTargetError: layer 0's input is among the aux hidden states of the draft.
    """
    if 0 in spec.aux_layers.layer_ids and architecture in WITHOUT_EMBEDDINGS:
        raise UnsupportedTargetError(
            field=f"target layers whose input the draft {spec.model!r} reads of a {architecture}",
            value=list(spec.aux_layers.layer_ids),
            allowed="1 and above: vLLM's layers of this target fail at layer 0's input, the embeddings",
            remedy="if the ids were understood wrongly, set the option aux_layers",
        )
