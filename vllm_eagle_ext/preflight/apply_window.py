# SPDX-License-Identifier: Apache-2.0
"""Keeps a draft with a window of its own in the KV-cache group of the target's layers."""

from __future__ import annotations

import logging

from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.preflight.engine_args import set_for_a_start
from vllm_eagle_ext.preflight.launch import Launch

logger = get_logger(__name__)

FLAG = "disable_hybrid_kv_cache_manager"
_ANNOUNCED = (
    "KV cache: draft and target share one group and keep all tokens. The draft attends only to the last "
    "{window}. In a group of its own vLLM would drop older tokens, and lose hits in the prefix cache. "
    "It would also cut the target's layers into groups as small as the draft. "
    "--no-disable-hybrid-kv-cache-manager keeps them apart."
)


def share_the_targets_group(launch: Launch) -> None:
    """Turn vLLM's manager of mixed caches off where only the draft's window would make them mixed.

    A target with windows or recurrent states of its own needs that manager.
    """
    case, target = launch.case, launch.target
    if case is None or case.spec.draft_window is None or target.is_hybrid:
        return
    windowed = "sliding_attention" in (launch.target_text.get("layer_types") or ())
    has_windows = windowed or bool(target.get_sliding_window()) or bool(target.attention_chunk_size)
    if has_windows or getattr(launch.engine_args, FLAG) is not None:
        return
    set_for_a_start(launch.engine_args, FLAG, True)
    log_once(logger, logging.INFO, _ANNOUNCED.format(window=case.spec.draft_window))
