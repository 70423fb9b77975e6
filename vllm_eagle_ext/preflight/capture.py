# SPDX-License-Identifier: Apache-2.0
"""Valid drafts that a target of vLLM's cannot feed, or whose cache cannot lie beside the target's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.spec import DraftSpec
from vllm_eagle_ext.errors import UnsupportedDraftError, UnsupportedTargetError
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

# On vLLM's DeepSeek-V2 layers, which add a residual that is not there yet at layer 0's input (0.32).
WITHOUT_EMBEDDINGS = frozenset(
    {
        "DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)  # fmt: skip


def check_capture(engine_args: Any, target_model_config: Any, case: Case, *, strict: bool) -> None:
    """Called for each draft of ours.

    Raises:
        UnsupportedTargetError: the target cannot hand out its embeddings.
        UnsupportedDraftError: V1 would fail once the weights are loaded; a warning if not `strict`.
    """
    refuse_embeddings(target_model_config.architecture, case.spec)
    # vLLM may switch its manager of mixed caches off for a connector.
    mixed = not (
        engine_args.disable_hybrid_kv_cache_manager
        or engine_args.kv_transfer_config
        or engine_args.kv_offloading_size
    )
    if case.setting.runner != "v1" or not mixed:
        return
    refusal = scattered(target_model_config.hf_text_config.to_dict(), case.spec)
    if refusal is not None and strict:
        raise refusal
    if refusal is not None:
        logger.warning("%s", refusal)


def refuse_embeddings(architecture: str, spec: DraftSpec) -> None:
    """Raises:
    UnsupportedTargetError: the draft reads the embeddings of a target that fails there.
    """
    if 0 in spec.aux_layers.layer_ids and architecture in WITHOUT_EMBEDDINGS:
        raise UnsupportedTargetError(
            field=f"target layers whose input the draft {spec.model!r} reads of a {architecture}",
            value=list(spec.aux_layers.layer_ids),
            allowed="1 and above: vLLM's layers of this target fail at layer 0's input, the embeddings",
            remedy="if the ids were understood wrongly, set the option aux_layers",
        )


def scattered(text: Mapping[str, Any], spec: DraftSpec) -> UnsupportedDraftError | None:
    """V1 wants a draft's layers in one group of the KV cache. Layers like the target's full-attention
    ones are pooled with them, and the pool is cut where it outgrows the windowed layers by half.

    Args:
        text: config of the target's language model.
    """
    kinds = Counter(text.get("layer_types") or ())
    if text.get("num_kv_shared_layers"):  # keep no cache of their own
        return None
    if set(kinds) != {"full_attention", "sliding_attention"} or spec.num_layers == 1:
        return None
    windowed = kinds["sliding_attention"]
    is_pooled = _shape_of_full_layers(text) == (spec.heads.kv, spec.heads.dim) and not any(
        layer.window for layer in spec.layers
    )
    if not is_pooled or not is_cut(kinds["full_attention"] + spec.num_layers, windowed):
        return None
    return UnsupportedDraftError(
        field=f"num_hidden_layers of the draft {spec.model!r}",
        value=spec.num_layers,
        allowed=f"on vLLM's V1 runner, beside a target of {kinds['full_attention']} full and {windowed} "
        "windowed layers, fewer: vLLM would cut the cache of the full ones in groups, and the draft's "
        "layers must lie in one",
        remedy="start with --disable-hybrid-kv-cache-manager, or on the V2 runner",
    )


def _shape_of_full_layers(text: Mapping[str, Any]) -> tuple[Any, Any]:
    """KV heads and head size; Gemma 4 states them per layer, beside those of its windowed layers."""
    first = text["layer_types"].index("full_attention")
    of_layer = (text.get("per_layer_config") or {}).get(str(first)) or {}
    stated = {**text, **of_layer}
    return stated.get("num_key_value_heads"), stated.get("head_dim")


def is_cut(full: int, windowed: int) -> bool:
    """Whether vLLM keeps so many full-attention layers in more than one group, beside windowed ones."""
    return full >= 1.5 * windowed
