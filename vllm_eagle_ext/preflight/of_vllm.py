# SPDX-License-Identifier: Apache-2.0
"""Describes the engine of a start, from vLLM's own objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_eagle_ext import architectures, compat, model_runner
from vllm_eagle_ext.checkpoint.registry import method_drafts_in_parallel, methods
from vllm_eagle_ext.cpu_kernels import LoadedKernels
from vllm_eagle_ext.engine import EngineFacts, adapts_head, speculative_keys
from vllm_eagle_ext.engine_rules.draft_vocabulary import quantises_head
from vllm_eagle_ext.engine_rules.without_hidden_states import lacks_hidden_states
from vllm_eagle_ext.memory.connectors import read_connector
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import Options

# Methods that vLLM takes, or falls back to, for drafts whose method was not named.
MISTAKABLE = (None, "draft_model", "eagle")


def engine_of_vllm(engine_args: Any, target: Any, options: Options) -> EngineFacts:
    """Describe an engine before vLLM builds its SpeculativeConfig.

    Of an engine whose draft and target are not this package's, only what is asked is read.

    Args:
        engine_args: vLLM's EngineArgs.
        target: ModelConfig of the target.
    """
    found = asked_engine(engine_args, target, options)
    may_be_ours = found.method in (*methods(), *MISTAKABLE)
    if not found.speculative or not (may_be_ours or found.architecture in REPLAYING_TARGETS):
        return found
    return replace(
        found,
        **read_device(engine_args),
        **_read_target(engine_args, target),
        **_read_arguments(engine_args),
        hands_out_states=not may_be_ours or hands_out_states(target),
        image_class=image_class(target) if found.runner == "v1" and may_be_ours else None,
        image_token_id=getattr(target.hf_config, "image_token_id", None),
        load_format=_draft_load_format(engine_args, found.speculative),
    )


def asked_engine(engine_args: Any, target: Any, options: Options) -> EngineFacts:
    """Describe what is asked of an engine: what a draft's files are inspected by, on any release."""
    speculative = asked_speculative(engine_args)
    if not speculative:
        return EngineFacts(is_foreseen=False, architecture=target.architecture, options=options)
    method, parallel = speculative.get("method"), bool(speculative.get("parallel_drafting"))
    k = speculative.get("num_speculative_tokens")
    return EngineFacts(
        is_foreseen=False,
        release=compat.vllm_version(),
        runner=model_runner.model_runner(drafts_in_parallel=parallel, engine_args=engine_args),
        registered=architectures.registered_architectures(),
        architecture=target.architecture,
        text=target.hf_text_config.to_dict(),
        max_model_len=target.max_model_len,
        options=options,
        speculative=speculative,
        method=method,
        k=k if isinstance(k, int) else None,
        parallel_drafting=parallel or method_drafts_in_parallel(method),
    )


def with_method(engine: EngineFacts, method: str) -> EngineFacts:
    """Add the method that vLLM took from words in the draft's path."""
    parallel = bool(engine.parallel_drafting) or method_drafts_in_parallel(method)
    return replace(engine, method=method, parallel_drafting=parallel)


def read_device(engine_args: Any) -> dict[str, Any]:
    """Read release and device, as fields of EngineFacts."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    found: dict[str, Any] = {
        "release": compat.vllm_version(),
        "gdn_prefill": _asked_prefill(engine_args),
        "has_triton": HAS_TRITON,
    }
    if current_platform.is_cuda():
        # By NVML, as vLLM asks, without a CUDA context.
        gpu = current_platform.get_device_capability()
        capability = None if gpu is None else (gpu.major, gpu.minor)
        cuda = current_platform.get_cuda_runtime_major()
        return {**found, "platform": "cuda", "capability": capability, "cuda": cuda}
    kernels = LoadedKernels() if current_platform.is_cpu() else None
    return {**found, "platform": current_platform.device_name, "cpu_kernels": kernels}


def _read_target(engine_args: Any, target: Any) -> dict[str, Any]:
    from vllm.platforms import current_platform

    replays = target.architecture in REPLAYING_TARGETS
    return {
        "dtype": str(target.dtype).removeprefix("torch."),
        "is_hybrid": target.is_hybrid,
        "default_min_p": target.get_diff_sampling_param().get("min_p"),
        "vllm_replays": bool(engine_args.use_replayssm) and target.supports_replayssm,
        "target_head_is_quantised": quantises_head(target.hf_config.to_dict()),
        "packs_convolutions": replays and current_platform.is_cpu() and packs_convolutions(),
    }


def _read_arguments(engine_args: Any) -> dict[str, Any]:
    args = engine_args
    offloading = (args.kv_transfer_config, args.kv_offloading_size)
    return {
        "tensor_parallel_size": args.tensor_parallel_size,
        "pipeline_parallel_size": args.pipeline_parallel_size,
        "context_parallel_size": max(
            args.decode_context_parallel_size, args.prefill_context_parallel_size
        ),
        "prefix_caching": bool(args.enable_prefix_caching),
        # vLLM may switch its manager of mixed caches off for a connector.
        "mixes_caches": not (args.disable_hybrid_kv_cache_manager or any(offloading)),
        "kv_connector": read_connector(*offloading, args.kv_offloading_backend),
        "prompt_embeds": bool(args.enable_prompt_embeds),
        "lora": bool(args.enable_lora),
        "lora_on_head": adapts_head(args.enable_lora, args.lora_target_modules),
        "microbatches": model_runner.has_microbatches(args),
        "scheduler": args.scheduler_cls,
        "weight_transfer": getattr(args.weight_transfer_config, "backend", None),
    }


def settled(engine: EngineFacts, engine_args: Any, config: Any) -> EngineFacts:
    """Add what vLLM decided.

    Args:
        config: vLLM's SpeculativeConfig.
    """
    # vLLM sets `parallel_drafting` itself for these methods, whose V2 runner drafts in parallel.
    by_method, parallel = method_drafts_in_parallel(config.method), bool(config.parallel_drafting)
    steps = config.num_speculative_tokens_per_batch_size
    is_followed = steps and engine_args.data_parallel_size <= 1
    return replace(
        engine,
        runner=model_runner.model_runner(
            drafts_in_parallel=parallel and not by_method,
            method=config.method,
            other_vocabulary=bool(getattr(config, "use_heterogeneous_vocab", False)),
            engine_args=engine_args,
        ),
        method=config.method,
        k=config.num_speculative_tokens,
        schedule=[list(step) for step in steps] if is_followed else None,
        parallel_drafting=parallel,
        adaptive_verification=bool(config.enable_adaptive_verification),
    )


def asked_speculative(engine_args: Any) -> dict[str, Any]:
    """Read `--speculative-config` and the `--spec-*` flags; empty where no draft is asked for.

    Keys may be spelt with dashes, as in vLLM.
    """
    given = engine_args.speculative_config or {}
    if not isinstance(given, Mapping):
        return {}
    keys = speculative_keys(given)
    method = keys.get("method") or getattr(engine_args, "spec_method", None)
    model = keys.get("model") or getattr(engine_args, "spec_model", None)
    if not method and not model:
        return {}
    k = keys.get("num_speculative_tokens", getattr(engine_args, "spec_tokens", None))
    return {**keys, "method": method, "model": model, "num_speculative_tokens": k}


def _asked_prefill(engine_args: Any) -> str:
    options = engine_args.additional_config
    asked = engine_args.gdn_prefill_backend or (
        options.get("gdn_prefill_backend") if isinstance(options, dict) else None
    )
    return str(asked or "auto").strip().lower()


def image_class(target: Any) -> str | None:
    """Name vLLM's class of a target with images whose config does not name their token.

    Several architectures may share a class, or have one for another runner.
    """
    if not target.is_multimodal_model or hasattr(target.hf_config, "image_token_index"):
        return None
    info, _ = target.registry.inspect_model_cls(target.architectures, target)
    return str(info.architecture)


def hands_out_states(target: Any) -> bool:
    """Ask the class that serves a target for vLLM's interface.

    vLLM's own classes are not imported but listed: an import may start CUDA, which vLLM puts off.
    """
    entry = target.registry.models.get(target.architecture)
    is_vllms = str(getattr(entry, "module_name", "")).startswith("vllm.")
    inner = getattr(target.hf_text_config, "architectures", None)
    lacks = lacks_hidden_states(target.architecture, compat.vllm_version(), inner)
    if is_vllms and lacks is False:
        return True
    from vllm.model_executor.models.interfaces import supports_eagle3

    served_by, _ = target.registry.resolve_model_cls(target.architectures, target)
    return bool(supports_eagle3(served_by)) and not (is_vllms and lacks)


def _draft_load_format(engine_args: Any, speculative: Mapping[str, Any]) -> object:
    load = speculative.get("draft_load_config") or engine_args
    return load.get("load_format") if isinstance(load, dict) else getattr(load, "load_format", None)


def packs_convolutions() -> bool:
    """Say whether vLLM packs the weights of short convolutions on this CPU, by what it asks itself."""
    import torch
    from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import is_arm_bf16

    return torch.cpu._is_avx512_bf16_supported() or is_arm_bf16()
