# SPDX-License-Identifier: Apache-2.0
"""Says which of vLLM's model runners will serve, by vLLM's own order of reasons."""

from __future__ import annotations

from typing import Any, Literal

_METHODS_ON_V1 = ("suffix", "custom_class", "medusa", "mlp_speculator")


def model_runner(
    *,
    drafts_in_parallel: bool,
    method: str | None = None,
    other_vocabulary: bool = False,
    engine_args: Any = None,
) -> Literal["v1", "v2"]:
    """Say which runner vLLM will choose for a draft, by its own order of reasons.

    Args:
        drafts_in_parallel: `parallel_drafting` is asked for, which only V1 has outside DFlash.
        method: of the speculative config; some exist only on V1.
        other_vocabulary: the draft has a vocabulary of its own, which only V1 can map.
        engine_args: vLLM's EngineArgs; None: those of a plain start.
    """
    from vllm import envs
    from vllm.triton_utils import HAS_TRITON

    if _only_v2_has(engine_args):
        return "v2"
    if envs.VLLM_USE_V2_MODEL_RUNNER is not None:
        return "v2" if envs.VLLM_USE_V2_MODEL_RUNNER else "v1"
    on_v1 = drafts_in_parallel or other_vocabulary or method in _METHODS_ON_V1
    return "v2" if HAS_TRITON and not (on_v1 or _only_v1_has(engine_args)) else "v1"


def _only_v2_has(engine_args: Any) -> bool:
    """Tell whether an engine has watermarks or HiSparse, for which vLLM overrides the environment."""
    attention = getattr(engine_args, "attention_config", None)
    if isinstance(attention, dict):
        sparse = attention.get("hisparse_config")
    else:
        sparse = getattr(attention, "hisparse_config", None)
    return sparse is not None or getattr(engine_args, "watermark_config", None) is not None


def _only_v1_has(engine_args: Any) -> bool:
    """Tell whether an engine cuts steps in micro-batches, or has pipeline stages under torchrun."""
    if engine_args is None:
        return False
    launched = engine_args.distributed_executor_backend == "external_launcher"
    return has_microbatches(engine_args) or (launched and engine_args.pipeline_parallel_size > 1)


def has_microbatches(engine_args: Any) -> bool:
    """Tell whether each step is cut in parts, as vLLM's ParallelConfig.use_ubatching does."""
    return bool(engine_args.enable_dbo) or engine_args.ubatch_size > 1
