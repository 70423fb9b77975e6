# SPDX-License-Identifier: Apache-2.0
"""Refuses valid drafts whose KV cache vLLM's V1 runner cannot lay out next to the target's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.checkpoint import Case, DraftSpec
from vllm_eagle_ext.checkpoint.draft_window import OPTION as WINDOW
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.preflight.launch import Launch

logger = get_logger(__name__)


def check_kv_groups(launch: Launch, case: Case) -> None:
    """Hold the draft's layers against the groups that the engine will make.

    Raises:
        UnsupportedDraftError: V1 would fail once the weights are loaded; a warning without `strict`.
    """
    engine_args = launch.engine_args
    # vLLM may switch its manager of mixed caches off for a connector.
    is_mixed = not (
        engine_args.disable_hybrid_kv_cache_manager
        or engine_args.kv_transfer_config
        or engine_args.kv_offloading_size
    )
    if case.setting.runner != "v1" or not is_mixed:
        return
    try:
        refuse_scattered(launch.target_text, case.spec)
    except UnsupportedDraftError as refusal:
        if launch.options.strict:
            raise
        logger.warning("%s", refusal)


def refuse_scattered(text: Mapping[str, Any], spec: DraftSpec) -> None:
    """Refuse a draft whose layers would lie in several groups: V1 wants them in one.

    Layers like the target's full-attention ones are pooled with them, and the pool is cut where it
    outgrows the windowed layers by half.

    Args:
        text: config of the target's language model.

    Raises:
        UnsupportedDraftError: the draft's layers are pooled, and the pool is cut.
    """
    stated = text.get("layer_types")
    kinds = Counter(map(str, stated) if isinstance(stated, list) else ())
    if text.get("num_kv_shared_layers"):  # keep no cache of their own
        return
    if spec.draft_window is not None and len(kinds) > 1:
        _refuse_scattered_window(kinds, spec)
    if set(kinds) != {"full_attention", "sliding_attention"} or spec.num_layers == 1:
        return
    windowed = kinds["sliding_attention"]
    is_pooled = _shape_of_full_layers(text) == (spec.heads.kv, spec.heads.dim) and not any(
        layer.window for layer in spec.layers
    )
    if not is_pooled or not is_cut(kinds["full_attention"] + spec.num_layers, windowed):
        return
    raise UnsupportedDraftError(
        field=f"num_hidden_layers of the draft {spec.model!r}",
        value=spec.num_layers,
        allowed=f"on vLLM's V1 runner, with a target of {kinds['full_attention']} full and {windowed} "
        "windowed layers, fewer: vLLM would cut the cache of the full ones in groups, and the draft's "
        "layers must lie in one",
        remedy="start with --disable-hybrid-kv-cache-manager, or on the V2 runner",
    )


def _refuse_scattered_window(kinds: Counter[str], spec: DraftSpec) -> None:
    """Refuse a window for which vLLM would cut the draft's cache. With a window of its own the draft is
    a kind of its own, cut where it outgrows a group."""
    sizes = [*kinds.values(), spec.num_layers]
    group = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    if spec.num_layers > group:
        raise UnsupportedDraftError(
            field=WINDOW,
            value=spec.draft_window,
            allowed=f"no window, on vLLM's V1 runner with a target of {dict(kinds)} layers: vLLM "
            f"would cut the cache of the draft's {spec.num_layers} in groups of {group}",
            remedy="leave the option out, or start on the V2 runner",
        )


def _shape_of_full_layers(text: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return KV heads and head size; Gemma 4 states them per layer, with those of windowed ones."""
    first = text["layer_types"].index("full_attention")
    of_layer = (text.get("per_layer_config") or {}).get(str(first)) or {}
    stated = {**text, **of_layer}
    return stated.get("num_key_value_heads"), stated.get("head_dim")


def is_cut(full: int, windowed: int) -> bool:
    """Say whether vLLM keeps so many full-attention layers, with windowed ones, in several groups."""
    return full >= 1.5 * windowed
