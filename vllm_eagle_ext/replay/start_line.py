# SPDX-License-Identifier: Apache-2.0
"""One line in the log of a start: what replay saves here, by the sizes of the running engine."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec, MambaSpec

from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.footprint import CacheSetting, footprint
from vllm_eagle_ext.memory.geometry import Attention, Target, read_target
from vllm_eagle_ext.memory.savings import StateReport, report
from vllm_eagle_ext.replay.platform_ops import replay_ops

logger = get_logger(__name__)


def log_start_line(vllm_config: VllmConfig) -> None:
    """Log the figures of one rank. vLLM also builds its attention for caches of a few blocks, to
    measure its graphs: nothing is said of those."""
    parallel = vllm_config.parallel_config
    if parallel.rank != 0 or not vllm_config.cache_config.num_gpu_blocks:
        return
    try:
        found = state_report(vllm_config)
    except Exception as error:  # noqa: BLE001 - no engine may fail for a line of its log
        logger.warning("Could not estimate replay savings: %s", error)
        return
    if found.fit:
        log_once(logger, logging.INFO, found.line())


def state_report(vllm_config: VllmConfig) -> StateReport:
    cache, length = vllm_config.cache_config, vllm_config.model_config.max_model_len
    target, draft = _read_layers(vllm_config)
    setting = CacheSetting(
        k=vllm_config.num_speculative_tokens,
        max_model_len=length,
        prefix_caching=cache.mamba_cache_mode == "align",
        cpu=replay_ops().scratch_blocks > 0,
        in_flight_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
    )
    replayed = footprint(target, "replay", setting, draft)
    per_token = footprint(target, "per_token", setting, draft)
    budget = (cache.num_gpu_blocks or 0) * replayed.block_bytes
    return report(replayed, per_token, budget=budget, max_model_len=length)


def _read_layers(vllm_config: VllmConfig) -> tuple[Target, list[Attention]]:
    """The target, and the attention layers that a draft adds, from the layers that were built."""
    specs = _specs(vllm_config)
    recurrent = [spec for spec in specs if isinstance(spec, MambaSpec)]
    attention = [spec for spec in specs if isinstance(spec, AttentionSpec)]
    target = read_target(
        vllm_config.model_config.hf_config.to_dict(),
        tp=vllm_config.parallel_config.tensor_parallel_size,
        kv_bytes=attention[0].dtype.itemsize if attention else None,
    )
    state = replace(target.recurrent, state_bytes=recurrent[0].dtypes[1].itemsize)
    shapes = Counter(
        (s.num_kv_heads, s.head_size, getattr(s, "sliding_window", None), s.dtype.itemsize)
        for s in attention
    )
    first = (attention[0].num_kv_heads, attention[0].head_size, None, attention[0].dtype.itemsize)
    shapes[first] -= target.attention.layers
    draft = [
        Attention(layers=count, kv_heads=heads, head_dim=width, window=window, element_bytes=size)
        for (heads, width, window, size), count in shapes.items()
        if count > 0
    ]
    return replace(target, recurrent=state), draft


def _specs(vllm_config: VllmConfig) -> list[KVCacheSpec]:
    layers = vllm_config.compilation_config.static_forward_context.values()
    specs = [
        layer.get_kv_cache_spec(vllm_config) for layer in layers if hasattr(layer, "get_kv_cache_spec")
    ]
    return [spec for spec in specs if spec is not None]
