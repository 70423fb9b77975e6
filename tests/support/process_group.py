"""The parallel groups of a process that is an engine's only one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def single_process_group(folder: Path) -> Iterator[None]:
    """vLLM's layers ask for their parallel groups when they are built."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{folder / 'store'}",
            backend="gloo",
        )
        initialize_model_parallel(1)
    yield
    cleanup_dist_env_and_memory()
