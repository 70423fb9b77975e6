# SPDX-License-Identifier: Apache-2.0
"""Counts what a request takes of the KV cache from the specs of the layers that were built, and says in
the log of a start what replay saves, and which of its capacity lies beyond the full CUDA graphs.

Blocks, sizes, groups and reservations are computed by vLLM's own functions. The other scheme's are, too,
on the specs that vLLM's own layers would have handed in.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from vllm.config import CUDAGraphMode, VllmConfig
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.footprint import (
    CPU_BLOCK,
    GPU_BLOCK,
    Footprint,
    FullGraphs,
    beyond_graphs,
    ceil,
    graphs_of,
    savings_line,
)
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS

logger = get_logger(__name__)

planning: Any = kv_cache_utils
with suppress(ImportError):  # 0.33 keeps the grouping in a module of its own
    from vllm.v1.core import kv_cache_planning as planning  # type: ignore[no-redef]

Specs = dict[str, KVCacheSpec]  # by layer


def log_start_line(vllm_config: VllmConfig) -> None:
    """Log the values of one rank. vLLM also builds its attention for caches of a few blocks, to
    measure its graphs: those are not logged."""
    parallel = vllm_config.parallel_config
    if parallel.rank != 0 or not vllm_config.cache_config.num_gpu_blocks:
        return
    try:
        replay, per_token, budget = both_footprints(vllm_config)
        fit = replay.fit(budget)
        graphs = full_graphs(vllm_config, fit) if current_platform.is_cuda() else None
    except Exception as error:  # noqa: BLE001 - no engine may fail for a line of its log
        logger.warning("Could not estimate replay savings: %s", error)
        return
    if not fit:
        return
    length = vllm_config.model_config.max_model_len
    log_once(logger, logging.INFO, savings_line(replay, per_token, budget=budget, length=length))
    if graphs is not None and not graphs.enough:
        log_once(logger, logging.INFO, beyond_graphs(graphs))


def both_footprints(vllm_config: VllmConfig) -> tuple[Footprint, Footprint, int]:
    """Return what a request takes with replay and with vLLM's own scheme, and the bytes of the cache."""
    specs = built_specs(vllm_config)
    replay = footprint_of(vllm_config, specs)
    per_token = footprint_of(vllm_config, per_token_specs(vllm_config, specs))
    return replay, per_token, (vllm_config.cache_config.num_gpu_blocks or 0) * replay.block_bytes


def full_graphs(vllm_config: VllmConfig, fit: int) -> FullGraphs | None:
    """Return where the graphs of this engine end; None where decode steps run without full graphs.

    Args:
        fit: requests that the KV cache holds at a time.
    """
    compilation, scheduler = vllm_config.compilation_config, vllm_config.scheduler_config
    sizes = compilation.cudagraph_capture_sizes
    if not sizes or compilation.cudagraph_mode.decode_mode() != CUDAGraphMode.FULL:
        return None
    return graphs_of(
        sizes,
        k=vllm_config.num_speculative_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        fit=fit,
        batch_tokens=scheduler.max_num_batched_tokens,
    )


def built_specs(vllm_config: VllmConfig) -> Specs:
    """Collect the specs of this rank as its worker hands them to vLLM."""
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    specs: Specs = get_kv_cache_spec(vllm_config)
    return specs


def per_token_specs(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> Specs:
    """Make the specs that vLLM's own layers would have handed in instead of those that replay.

    Args:
        specs: as `built_specs` collects them.
    """
    layers = vllm_config.compilation_config.static_forward_context
    other = _with_stock_blocks(vllm_config)
    return {
        name: QwenGatedDeltaNetAttention.get_kv_cache_spec(layers[name], other)
        if isinstance(layers[name], QwenGatedDeltaNetAttention)
        else replace(spec, block_size=other.cache_config.block_size)
        for name, spec in specs.items()
    }


def _with_stock_blocks(vllm_config: VllmConfig) -> VllmConfig:
    """Return the same engine with the blocks that vLLM sizes for its own target. The size that it starts
    from, such as a --block-size, which it forgets, is found by the block that came out."""
    ours, tokens = vllm_config.model_config.architecture, vllm_config.cache_config.block_size
    stock = {replaying: name for name, replaying in REPLAYING_TARGETS.items()}[ours]
    smallest = CPU_BLOCK if vllm_config.device_config.device_type == "cpu" else GPU_BLOCK
    starts = [smallest << shift for shift in range(tokens.bit_length())]
    blocks = (_sized(vllm_config, ours, start).cache_config.block_size for start in starts)
    start = next((start for start, size in zip(starts, blocks, strict=True) if size == tokens), smallest)
    return _sized(vllm_config, stock, start)


def _sized(vllm_config: VllmConfig, architecture: str, start: int) -> VllmConfig:
    """Let vLLM size the blocks for an architecture, from blocks of so many tokens."""
    sized = copy.copy(vllm_config)
    sized.model_config, sized.cache_config = map(
        copy.copy, (vllm_config.model_config, vllm_config.cache_config)
    )
    sized.model_config._architecture = architecture
    sized.cache_config.block_size, sized.cache_config.mamba_page_size_padded = start, None
    with _quiet("vllm.platforms.interface"):
        current_platform.update_block_size_for_backend(sized)
    return sized


def footprint_of(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> Footprint:
    """Count what a request of max_model_len takes, as vLLM admits and groups these specs."""
    with _quiet(planning.__name__):  # it would speak of this grouping as of the engine's
        groups = planning.get_kv_cache_groups(vllm_config, dict(specs))
    page = max(group.kv_cache_spec.page_size_bytes for group in groups)
    taken = [group.kv_cache_spec.max_memory_usage_bytes(vllm_config) for group in groups]
    blocks = [
        ceil(size, group.kv_cache_spec.page_size_bytes)
        for size, group in zip(taken, groups, strict=True)
    ]
    states = [place for place, each in enumerate(groups) if isinstance(each.kv_cache_spec, MambaSpec)]
    layers = sum(len(groups[place].layer_names) for place in states)
    spec, state_blocks = groups[states[0]].kv_cache_spec, blocks[states[0]]
    # The recorded inputs are the third part, after conv state and committed state.
    recorded = list(zip(spec.shapes, spec.dtypes, strict=True))[2:]
    recorded_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in recorded)
    return Footprint(
        block_bytes=page * max(len(group.layer_names) for group in groups),
        blocks=sum(blocks),
        state_blocks=state_blocks,
        state=layers * taken[states[0]],
        recorded_inputs=layers * state_blocks * recorded_bytes,
    )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
