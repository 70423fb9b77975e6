from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def single_process_group(tmp_path_factory):
    """vLLM's layers ask for their parallel groups when they are built."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )

    store = tmp_path_factory.mktemp("group") / "store"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{store}",
            backend="gloo",
        )
        initialize_model_parallel(1)
    yield
    cleanup_dist_env_and_memory()
