"""Engines one after the other in one process: what has to happen in between."""

from __future__ import annotations

import gc
from typing import Any


def close(llm: Any) -> None:
    """End an engine. The caller drops its own reference."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    group = llm.llm_engine.vllm_config.parallel_config.placement_group
    if group is not None:  # Ray's devices, which the next engine waits for
        import ray

        ray.util.remove_placement_group(group)
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()


def keep_kernels() -> None:
    """vLLM's own kernels are in place once an engine was built, and its second scan of all modules trips
    over numba's (0.32)."""
    from vllm.platforms import current_platform

    type(current_platform).register_triton_kernel_overrides = lambda *_: None
