# SPDX-License-Identifier: Apache-2.0
"""Says which of vLLM's model runners will serve, by vLLM's own order of reasons."""

from __future__ import annotations

from typing import Any, Literal

from vllm_eagle_ext import compat
from vllm_eagle_ext.releases import is_from

_METHODS_ON_V1 = ("suffix", "custom_class")
_METHODS_ON_V1_IN_032 = ("medusa", "mlp_speculator")
_SPARSE_CONNECTOR = "HiSparseConnector"  # with it vLLM sets up HiSparse


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

    if only_v2_has(engine_args):
        return "v2"
    if envs.VLLM_USE_V2_MODEL_RUNNER is not None:
        return "v2" if envs.VLLM_USE_V2_MODEL_RUNNER else "v1"
    on_v1 = drafts_in_parallel or other_vocabulary or _is_on_v1(method)
    return "v2" if HAS_TRITON and not (on_v1 or only_v1_has(engine_args)) else "v1"


def _is_on_v1(method: str | None) -> bool:
    return method in _METHODS_ON_V1 or (
        method in _METHODS_ON_V1_IN_032 and not is_from(compat.vllm_version(), "0.33")
    )


def only_v2_has(engine_args: Any) -> bool:
    """Tell whether an engine has watermarks or HiSparse, for which vLLM overrides the environment."""
    sparse = _of(_of(engine_args, "attention_config"), "hisparse_config")
    has_sparse = sparse is not None or _is_sparse(_of(engine_args, "kv_transfer_config"))
    return has_sparse or _of(engine_args, "watermark_config") is not None


def _is_sparse(connector: Any) -> bool:
    """Tell whether a KV connector, or one within vLLM's MultiConnector, is HiSparse's."""
    within = _of(_of(connector, "kv_connector_extra_config"), "connectors")
    several = within if isinstance(within, list) else []
    return any(_of(one, "kv_connector") == _SPARSE_CONNECTOR for one in (connector, *several))


def _of(config: Any, field: str) -> Any:
    """Read a field of a config, which may be a dict as typed; None: it is not there."""
    return config.get(field) if isinstance(config, dict) else getattr(config, field, None)


def only_v1_has(engine_args: Any) -> bool:
    """Tell whether an engine cuts steps in micro-batches, or has pipeline stages under torchrun."""
    if engine_args is None:
        return False
    launched = _of(engine_args, "distributed_executor_backend") == "external_launcher"
    return has_microbatches(engine_args) or (
        launched and _count(engine_args, "pipeline_parallel_size") > 1
    )


def has_microbatches(engine_args: Any) -> bool:
    """Tell whether each step is cut in parts, as vLLM's ParallelConfig.use_ubatching does."""
    return bool(_of(engine_args, "enable_dbo")) or _count(engine_args, "ubatch_size") > 1


def _count(config: Any, field: str) -> int:
    """Read a number; one that is no number is for vLLM to refuse."""
    found = _of(config, field)
    return found if isinstance(found, int) else 1
