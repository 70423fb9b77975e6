# SPDX-License-Identifier: Apache-2.0
"""Sets gauges next to vLLM's own: which draft is served, and what a hybrid target's states take.

The preflight sets them in the processes that read the command line, which also answer /metrics. A plugin
of the group `vllm.stat_logger_plugins` would do too, but vLLM turns its statistics on as soon as one is
installed, also for servers started with --disable-log-stats.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.version import __version__

if TYPE_CHECKING:
    from vllm_eagle_ext.draft import DraftSpec
    from vllm_eagle_ext.memory.state_scheme import Choice

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
_state_labels: dict[str, str] = {}  # of the gauges of the state, where this process publishes them


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


def publish_state(engine_args: Any, target_model_config: Any, choice: Choice) -> None:
    """Publish how many blocks a request's recurrent state takes. Never raises."""
    try:
        values = {STATE_BLOCKS: choice.blocks.count}
        _state_labels.update(_set(engine_args, target_model_config, values, {"state": choice.scheme}))
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
    if _state_labels:
        _publish({STATE_BYTES: state, STATE_BLOCKS: state_blocks}, _state_labels)


def withdraw() -> None:
    """Remove an earlier engine's gauges from this process, as vLLM does with its own. Never raises."""
    _state_labels.clear()
    while _gauges:
        from prometheus_client import REGISTRY

        _, gauge = _gauges.popitem()
        with suppress(KeyError):  # somebody cleared the registry
            REGISTRY.unregister(gauge)


def _set(
    engine_args: Any, target_model_config: Any, values: Mapping[str, float], labels: dict[str, str]
) -> dict[str, str]:
    if engine_args.disable_log_stats:
        return {}
    labels = {"model_name": target_model_config.served_model_name, **labels}
    _publish(values, labels)
    return labels


def _publish(values: Mapping[str, float], labels: Mapping[str, str]) -> None:
    from prometheus_client import Gauge

    for name, value in values.items():
        if name not in _gauges:
            _gauges[name] = Gauge(name, _HELP[name], labels, multiprocess_mode="mostrecent")
        _gauges[name].labels(**labels).set(value)
