# SPDX-License-Identifier: Apache-2.0
"""Sets gauges next to vLLM's own: which draft is served, and what a hybrid target's states take.

A start sets them in the processes that read the command line, which also answer /metrics. A plugin
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
STATE_BLOCKS = "vllm_eagle_ext:request_state_blocks"

_HELP = {
    DRAFT_INFO: "The draft that is served, how it was read, and by which drafter. Always 1.",
    STATE_BLOCKS: "KV-cache blocks of recurrent state that one request takes in each recurrent layer.",
}
_gauges: dict[str, Any] = {}


def publish_draft(engine_args: Any, target_model_config: Any, spec: DraftSpec, k: int) -> None:
    """Publish which draft is served, and how."""
    labels = {
        "draft": spec.model,
        "family": spec.title,
        "drafter": spec.drafter.architecture,
        "aux_layers": ",".join(map(str, spec.aux_layers.layer_ids)),
        "rule": spec.aux_layers.rule,
        "num_speculative_tokens": str(k),
        "version": __version__,
    }
    _set(engine_args, target_model_config, DRAFT_INFO, 1, labels)


def publish_state(engine_args: Any, target_model_config: Any, choice: Choice) -> None:
    """Publish how many blocks a request's recurrent state takes."""
    labels = {"state": choice.scheme}
    _set(engine_args, target_model_config, STATE_BLOCKS, choice.blocks.count, labels)


def withdraw() -> None:
    """Remove an earlier engine's gauges from this process, as vLLM does with its own. Never raises."""
    while _gauges:
        from prometheus_client import REGISTRY

        _, gauge = _gauges.popitem()
        with suppress(KeyError):  # somebody cleared the registry
            REGISTRY.unregister(gauge)


def _set(
    engine_args: Any, target_model_config: Any, name: str, value: float, labels: Mapping[str, str]
) -> None:
    """Set a gauge. Never raises: no engine may fail for one."""
    if engine_args.disable_log_stats:
        return
    try:
        from prometheus_client import Gauge

        labels = {"model_name": target_model_config.served_model_name, **labels}
        if name not in _gauges:
            _gauges[name] = Gauge(name, _HELP[name], labels, multiprocess_mode="mostrecent")
        _gauges[name].labels(**labels).set(value)
    except Exception as error:  # noqa: BLE001
        logger.warning("%s is missing in /metrics: %s", name, error)
