# SPDX-License-Identifier: Apache-2.0
"""Reads from vLLM's VllmConfig what several rules ask. A config that is half built, of a start that has
still to choose how states are kept (`start/ask.py`), has the same fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.draft.spec import Runner
from vllm_eagle_ext.memory.device import Device, key_dim
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS

_VLLMS = {ours: architecture for architecture, ours in REPLAYING_TARGETS.items()}


def runner_of(config: Any) -> Runner:
    """Return the model runner, by vLLM's own order of reasons."""
    return "v2" if config.use_v2_model_runner else "v1"


def architecture_of(config: Any) -> str:
    """Return the target's architecture, as its config.json names it."""
    architecture = str(config.model_config.architecture)
    return _VLLMS.get(architecture, architecture)


def text_of(config: Any) -> Mapping[str, Any]:
    """Return the config of the target's language model."""
    return dict(config.model_config.hf_text_config.to_dict())


def dtype_of(config: Any) -> str:
    return str(config.model_config.dtype).removeprefix("torch.")


def schedule_of(config: Any) -> list[list[int]] | None:
    """Return the schedule of K by batch size; with data parallelism vLLM follows none."""
    steps = config.speculative_config.num_speculative_tokens_per_batch_size
    is_followed = steps and config.parallel_config.data_parallel_size <= 1
    return [list(step) for step in steps] if is_followed else None


def device_of(config: Any) -> Device:
    """Describe the platform of this process, without a CUDA context."""
    from vllm.platforms import current_platform

    from vllm_eagle_ext import compat

    more = config.additional_config  # where vLLM puts --gdn-prefill-backend too
    backend = more.get("gdn_prefill_backend") if isinstance(more, dict) else None
    known: dict[str, Any] = {
        "release": compat.vllm_version(), "key_dim": key_dim(text_of(config)),
        "gdn_prefill": str(backend or "auto").strip().lower(),
    }  # fmt: skip
    if not current_platform.is_cuda():
        return Device(platform=current_platform.device_name, **known)
    # By NVML, as vLLM asks.
    gpu = current_platform.get_device_capability()
    capability = None if gpu is None else (gpu.major, gpu.minor)
    return Device(capability=capability, cuda=current_platform.get_cuda_runtime_major(), **known)
