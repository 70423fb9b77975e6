# SPDX-License-Identifier: Apache-2.0
"""Sets gauges next to vLLM's own: which draft is served, and what a hybrid target's states take.

The preflight sets them in the processes that read the command line, which also answer /metrics. A plugin
of the group `vllm.stat_logger_plugins` would do too, but vLLM turns its statistics on as soon as one is
installed, also for servers started with --disable-log-stats.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.device import Device
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.footprint import (
    CPU_KERNEL_BLOCK,
    GPU_BLOCK,
    CacheSetting,
    Footprint,
    footprint,
)
from vllm_eagle_ext.memory.geometry import Attention, Target, read_target
from vllm_eagle_ext.memory.state_blocks import Scheme
from vllm_eagle_ext.version import __version__

if TYPE_CHECKING:
    from vllm_eagle_ext.checkpoint import DraftSpec

logger = get_logger(__name__)

# vLLM unregisters whatever begins with "vllm:" when it builds its own.
DRAFT_INFO = "vllm_eagle_ext:draft_info"
STATE_BYTES = "vllm_eagle_ext:request_state_bytes"
STATE_BLOCKS = "vllm_eagle_ext:request_state_blocks"

_HELP = {
    DRAFT_INFO: "The draft that is served, how it was read, and by which drafter. Always 1.",
    STATE_BYTES: "Bytes of one request's recurrent state on one rank, in whole KV-cache blocks.",
    STATE_BLOCKS: "KV-cache blocks of recurrent state that one request takes in each recurrent layer.",
}
_gauges: dict[str, Any] = {}
_state_labels: dict[str, str] = {}  # of the gauges of the state, where this process has them


def publish_draft(engine_args: Any, target_model_config: Any, spec: DraftSpec, k: int) -> None:
    """Publish which draft is served, and how. Never raises: no engine may fail for a gauge."""
    try:
        labels = {
            "draft": spec.model,
            "family": spec.title,
            "drafter": spec.drafter.architecture,
            "aux_layers": ",".join(map(str, spec.aux_layers.layer_ids)),
            "rule": spec.aux_layers.rule,
            "num_speculative_tokens": str(k),
            "version": __version__,
        }
        _set(engine_args, target_model_config, {DRAFT_INFO: 1}, labels)
    except Exception as error:  # noqa: BLE001
        logger.warning("The draft is missing in /metrics: %s", error)


def publish_state(
    engine_args: Any, target_model_config: Any, speculative_config: Any, scheme: Scheme,
    device: Device, *, non_causal_draft: bool = False,
) -> None:  # fmt: skip
    """Publish what a request's recurrent state takes. Never raises."""
    try:
        found = state_footprint(
            engine_args, target_model_config, speculative_config, scheme, device,
            non_causal_draft=non_causal_draft,
        )  # fmt: skip
        values = {STATE_BYTES: found.state, STATE_BLOCKS: found.state_blocks}
        _state_labels.update(_set(engine_args, target_model_config, values, {"state": scheme}))
    except Exception as error:  # noqa: BLE001
        logger.warning("The state's size is missing in /metrics: %s", error)


def correct_state(state: int, state_blocks: int) -> None:
    """Set the gauges of the state to what the engine that was built in this process reserves.

    A worker in a process of its own has no gauges, and reports some of its numbers to vLLM's front
    end, but none of these.

    Args:
        state: bytes of one request on one rank.
        state_blocks: of one request in each recurrent layer.
    """
    for name, value in ((STATE_BYTES, state), (STATE_BLOCKS, state_blocks)):
        if name in _gauges and _state_labels:
            _gauges[name].labels(**_state_labels).set(value)


def withdraw() -> None:
    """Remove an earlier engine's gauges from this process, as vLLM does with its own. Never raises."""
    _state_labels.clear()
    while _gauges:
        from prometheus_client import REGISTRY

        _, gauge = _gauges.popitem()
        with suppress(KeyError):  # somebody cleared the registry
            REGISTRY.unregister(gauge)


def state_footprint(
    engine_args: Any, target_model_config: Any, speculative_config: Any, scheme: Scheme,
    device: Device, *, non_causal_draft: bool = False,
) -> Footprint:  # fmt: skip
    """Compute it as a plan does, with the dtypes of this run: vLLM's front end knows no block's size."""
    target = _target(engine_args, target_model_config, cpu=device.on_cpu)
    size = target.attention.element_bytes
    alignment = device.attention_alignment(
        target.attention.head_dim, element_bytes=size, non_causal_draft=non_causal_draft
    )
    if asked := engine_args.block_size:
        smallest = CPU_KERNEL_BLOCK if device.on_cpu else GPU_BLOCK
        alignment = max(asked, alignment or smallest)
    setting = CacheSetting(
        k=speculative_config.num_speculative_tokens,
        max_model_len=target_model_config.max_model_len,
        prefix_caching=bool(engine_args.enable_prefix_caching),
        cpu=device.on_cpu,
        attention_alignment=alignment,
        prefill_exports=device.prefill_exports,
    )
    # A draft's wider heads widen every block.
    draft = speculative_config.draft_model_config or target_model_config
    layers = Attention(
        layers=1,
        kv_heads=draft.get_total_num_kv_heads(),
        head_dim=draft.get_head_size(),
        element_bytes=size,
        tp=target.attention.tp,
    )
    return footprint(target, scheme, setting, [layers])


def _target(engine_args: Any, target_model_config: Any, *, cpu: bool) -> Target:
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE, kv_cache_dtype_str_to_dtype

    keys = kv_cache_dtype_str_to_dtype(engine_args.kv_cache_dtype, target_model_config)
    target = read_target(
        target_model_config.hf_config.to_dict(),
        tp=engine_args.tensor_parallel_size,
        kv_bytes=keys.itemsize,
        fp32_state=cpu,
    )
    asked = engine_args.mamba_ssm_cache_dtype
    if asked == "auto":
        return target
    size = STR_DTYPE_TO_TORCH_DTYPE[asked].itemsize
    return replace(target, recurrent=replace(target.recurrent, state_bytes=size))


def _set(
    engine_args: Any, target_model_config: Any, values: Mapping[str, float], labels: dict[str, str]
) -> dict[str, str]:
    if engine_args.disable_log_stats:
        return {}
    from prometheus_client import Gauge

    labels = {"model_name": target_model_config.served_model_name, **labels}
    for name, value in values.items():
        if name not in _gauges:
            _gauges[name] = Gauge(name, _HELP[name], labels, multiprocess_mode="mostrecent")
        _gauges[name].labels(**labels).set(value)
    return labels
