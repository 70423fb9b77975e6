"""Engines one after the other in one process: what has to happen in between."""

from __future__ import annotations

import gc
from typing import Any


def build(job: dict[str, Any], worker: str, options: dict[str, Any]) -> Any:
    """An engine of a job's target, engine_args and speculative config.

    Args:
        worker: extension of vLLM's worker, "package.module.Class".
        options: additional_config.eagle_ext.
    """
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": job["target"],
        "max_model_len": 1024,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.3,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "seed": 0,
        "worker_extension_cls": worker,
        **job["engine_args"],
    }
    if job["speculative"] is not None:
        arguments["speculative_config"] = job["speculative"]
    if options:
        arguments["additional_config"] = {"eagle_ext": options}
    return LLM(**arguments)


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
