# SPDX-License-Identifier: Apache-2.0
"""Lines in the log of a start: what replay saves here, by the specs of the running engine, and which of
its capacity lies beyond the full CUDA graphs."""

from __future__ import annotations

import logging

from vllm.config import CUDAGraphMode, VllmConfig
from vllm.platforms import current_platform

from vllm_eagle_ext import metrics
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.cuda_graphs import FullGraphs, beyond_graphs, graphs_of
from vllm_eagle_ext.memory.savings import StateReport, report
from vllm_eagle_ext.replay.built_caches import built_specs, per_token_specs, state_share

logger = get_logger(__name__)


def log_start_line(vllm_config: VllmConfig) -> None:
    """Log the figures of one rank. vLLM also builds its attention for caches of a few blocks, to
    measure its graphs: those are not logged."""
    parallel = vllm_config.parallel_config
    if parallel.rank != 0 or not vllm_config.cache_config.num_gpu_blocks:
        return
    try:
        found = state_report(vllm_config)
        graphs = full_graphs(vllm_config, found.fit) if current_platform.is_cuda() else None
    except Exception as error:  # noqa: BLE001 - no engine may fail for a line of its log
        logger.warning("Could not estimate replay savings: %s", error)
        return
    metrics.correct_state(found.state, found.state_blocks)
    if not found.fit:
        return
    log_once(logger, logging.INFO, found.line())
    if graphs is not None and not graphs.enough:
        log_once(logger, logging.INFO, beyond_graphs(graphs))


def state_report(vllm_config: VllmConfig) -> StateReport:
    specs = built_specs(vllm_config)
    replayed = state_share(vllm_config, specs)
    per_token = state_share(vllm_config, per_token_specs(vllm_config, specs))
    budget = (vllm_config.cache_config.num_gpu_blocks or 0) * replayed.block_bytes
    length = vllm_config.model_config.max_model_len
    return report(replayed, per_token, budget=budget, max_model_len=length)


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
