# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's own planner say, in a dry start's process, what a rank's memory holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def plan_caches(config: Any, room: int) -> dict[str, Any]:
    """Build target and draft, and tell what vLLM's planner makes of so many bytes of a rank."""
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.worker_base import get_current_attn_backends, get_supported_kv_cache_layouts

    from vllm_eagle_ext.preflight.described import build_models

    planning: Any = kv_cache_utils
    with suppress(ImportError):  # 0.33 has a module of its own for it
        from vllm.v1.core import kv_cache_planning as planning  # type: ignore[no-redef]
    # The models, up to their weights, and what they leave for caches.
    models, ranks = build_models(config), config.parallel_config.world_size
    weights = _size(models[0].parameters())
    tables = _size({id(held): held for model in models for held in model.buffers()}.values())
    budget = max(0, room - weights - tables)
    found: dict[str, Any] = {"budget": budget, "tables": tables, "weights": weights, "requests": 0.0}
    # Their caches, as an engine's core asks workers for them.
    with set_current_vllm_config(config):
        current_platform.update_block_size_for_backend(config)
        specs = get_kv_cache_spec(config)
        layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
        resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], specs.values())
    kinds = Counter(f"{type(spec).__name__} of {spec.block_size} tokens" for spec in specs.values())
    graphs = config.compilation_config.max_cudagraph_capture_size
    found |= {"blocks": 0, "layers": dict(kinds), "graphs": graphs}
    # The pool.
    further: list[Any] = []
    if hasattr(planning, "get_global_kv_cache_groups"):  # from 0.33 on
        further.append(planning.get_global_kv_cache_groups(config, [specs] * ranks))
    try:
        cache, *_ = planning.get_kv_cache_configs(config, [specs] * ranks, [budget] * ranks, *further)
    except ValueError as error:  # not one request fits
        return found | {"why": str(error)}
    requests = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, cache)
    return found | {"requests": requests, "blocks": cache.num_blocks}


def _size(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
