# SPDX-License-Identifier: Apache-2.0
"""Asks vLLM early: what a start needs to know before there is a VllmConfig.

vLLM's own properties answer, on a config that is half built.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.draft.registry import method_fills_a_block
from vllm_eagle_ext.draft.spec import DraftRequest, Runner
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.start.rules.vllm_config import runner_of
from vllm_eagle_ext.version import is_from

# Methods that vLLM takes, or falls back to, for drafts whose method was not named.
MISTAKABLE = (None, "draft_model", "eagle")
_SPARSE_CONNECTOR = "HiSparseConnector"  # with it vLLM sets up HiSparse


def half_built_config(engine_args: Any, target: Any, parallel: Any, speculative: Any) -> Any:
    """Make a VllmConfig of what is there before vLLM makes one: it answers by vLLM's own properties.

    Args:
        engine_args: vLLM's EngineArgs.
        target: ModelConfig of the target.
        parallel: its ParallelConfig.
        speculative: the SpeculativeConfig, or what is known of it.
    """
    from vllm.config import KVTransferConfig, VllmConfig

    args = engine_args
    transfer = args.kv_transfer_config
    transfer = KVTransferConfig(**transfer) if isinstance(transfer, Mapping) else transfer
    sparse = args.attention_config and args.attention_config.hisparse_config
    if sparse is None and transfer is not None and transfer.has_connector(_SPARSE_CONNECTOR):
        sparse = True
    more = args.additional_config if isinstance(args.additional_config, Mapping) else {}
    if args.gdn_prefill_backend:
        more = {**more, "gdn_prefill_backend": args.gdn_prefill_backend}
    config = VllmConfig.__new__(VllmConfig)
    config.__dict__.update(
        model_config=target, parallel_config=parallel, speculative_config=speculative,
        additional_config=more, kv_transfer_config=transfer, watermark_config=args.watermark_config,
        attention_config=SimpleNamespace(hisparse_config=sparse),
        lora_config=args.enable_lora or None,
        cache_config=SimpleNamespace(
            enable_prefix_caching=args.enable_prefix_caching, use_replayssm=args.use_replayssm,
            kv_offloading_size=args.kv_offloading_size, kv_offloading_backend=args.kv_offloading_backend,
        ),
    )  # fmt: skip
    config._post_init_kv_transfer_config()  # offloading by its own options names a connector
    return config


def draft_request(
    engine_args: Any, target: Any, parallel: Any, options: Options, *, method: str | None = None
) -> DraftRequest:
    """Say what is asked of the draft of a start.

    Args:
        method: that vLLM took from words in the draft's path.
    """
    from vllm.model_executor.models.registry import ModelRegistry

    asked = asked_speculative(engine_args)
    method, k = method or asked.get("method"), asked.get("num_speculative_tokens")
    in_parallel = bool(asked.get("parallel_drafting"))
    speculative = SimpleNamespace(method=method, parallel_drafting=in_parallel)
    return DraftRequest(
        options=options, method=method, k=k if isinstance(k, int) and k > 0 else None,
        max_model_len=target.max_model_len,
        runner=_runner(engine_args, target, parallel, speculative),
        parallel_drafting=in_parallel or method_fills_a_block(method),
        before_033=not is_from(compat.vllm_version(), "0.33"),
        registered=frozenset(ModelRegistry.get_supported_archs()),
    )  # fmt: skip


def _runner(engine_args: Any, target: Any, parallel: Any, speculative: Any) -> Runner | None:
    """Return the model runner; None where only vLLM's own words refuse what is asked."""
    try:
        return runner_of(half_built_config(engine_args, target, parallel, speculative))
    except (ValueError, TypeError, AttributeError):
        return None


def asked_speculative(engine_args: Any) -> dict[str, Any]:
    """Read `--speculative-config` and the `--spec-*` flags; empty where no draft is asked for.

    Keys may be spelt with dashes, as in vLLM.
    """
    keys = speculative_keys(engine_args.speculative_config)
    method = keys.get("method") or getattr(engine_args, "spec_method", None)
    model = keys.get("model") or getattr(engine_args, "spec_model", None)
    if not method and not model:
        return {}
    k = keys.get("num_speculative_tokens", getattr(engine_args, "spec_tokens", None))
    return {**keys, "method": method, "model": model, "num_speculative_tokens": k}


def speculative_keys(given: object) -> dict[str, Any]:
    """Spell the keys of a speculative config as vLLM does, which takes dashes too."""
    if not isinstance(given, Mapping):
        return {}
    return {str(key).replace("-", "_"): value for key, value in given.items()}
