"""Builds a replaying target on one of several ranks, without weights or engine.

    python -m tests.support.self_check_process JOB RESULT

JOB is a JSON object: rank, ranks, rendezvous (a file), states (of `hybrid_state`, one after the other)
and broken, how the kernels of this rank are, or null.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import breakage
from tests.support.hybrid import TARGET, ngram

K = 7


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def configure(state: str, ranks: int) -> Any:
    """By vLLM's own way, the preflight included."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(TARGET), speculative_config=ngram(K), tensor_parallel_size=ranks,
        additional_config={"eagle_ext": {"hybrid_state": state}}, enforce_eager=True,
        enable_prefix_caching=False, max_model_len=256, distributed_executor_backend="mp",
    ).create_engine_config()  # fmt: skip


def build(config: Any) -> Any:
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(config.model_config.dtype):
        return initialize_model(config)


def describe(model: Any, config: Any, hashed: str) -> dict[str, Any]:
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
    from vllm.model_executor.models.registry import ModelRegistry

    layers = [part for part in model.modules() if isinstance(part, QwenGatedDeltaNetAttention)]
    specs = [layer.get_kv_cache_spec(config) for layer in layers]
    architecture = config.model_config.architecture
    sized_by, _ = ModelRegistry.resolve_model_cls(architecture, model_config=config.model_config)
    return {
        "model": type(model).__module__,
        "model_state": hasattr(model, "get_model_state_cls"),
        "layers": Counter(type(layer).__name__ for layer in layers),
        "forward": {layer._forward_method.__name__ for layer in layers}.pop(),
        "fused": {bool(layer.enable_fused_gdn_spec_decode) for layer in layers}.pop(),
        "blocks": {spec.num_speculative_blocks for spec in specs}.pop(),
        "parts": {len(spec.shapes) for spec in specs}.pop(),
        "architecture": architecture,
        "sized_by": sized_by.__module__,
        "other_graphs": config.model_config.compute_hash() != hashed,
    }


def main(job: dict[str, Any]) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    importlib.import_module("vllm._custom_ops")  # or ranks take different ways through vLLM's groups
    said, models = Said(), {}
    with pytest.MonkeyPatch.context() as patch:
        if job["broken"]:
            breakage.apply(job["broken"], patch.setattr)
        for state in job["states"]:
            config = configure(state, job["ranks"])
            hashed = config.model_config.compute_hash()
            config.cache_config.mamba_block_size = config.model_config.max_model_len
            # The name of the ranks' shared memory, which one process makes up for all of an engine.
            os.environ["VLLM_DIST_IDENT"] = Path(job["rendezvous"]).parent.name
            with set_current_vllm_config(config):
                init_distributed_environment(
                    job["ranks"], job["rank"], f"file://{job['rendezvous']}", job["rank"], "gloo"
                )
                ensure_model_parallel_initialized(job["ranks"], 1)
                said.lines.clear()
                logging.getLogger("vllm").addHandler(said)  # vLLM has removed it when it configured
                try:
                    models[state] = describe(build(config), config, hashed)
                except ValueError as error:
                    models[state] = {"error": f"{type(error).__name__}: {error}"}
                models[state]["log"] = [line for line in said.lines if "Self-check" in line]
    return models


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
