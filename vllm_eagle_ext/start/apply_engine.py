# SPDX-License-Identifier: Apache-2.0
"""Writes what was decided of the engine: prefix cache, KV-cache groups, scheduler, recurrent states."""

from __future__ import annotations

import logging
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.families.resolved_marker import write_marker
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.start import metrics
from vllm_eagle_ext.start.ask import asked_speculative
from vllm_eagle_ext.start.messages import tell_state
from vllm_eagle_ext.start.rules.speculative import SCHEDULER
from vllm_eagle_ext.start.rules.states import choose_scheme, needs_replay, vllm_replays
from vllm_eagle_ext.start.rules.vllm_config import schedule_of

logger = get_logger(__name__)

_MARK = "_eagle_ext_set"  # field of EngineArgs -> what it was, and what it was set to
_DROP, _ONE_MANAGER = "disable_eagle_block_drop", "disable_hybrid_kv_cache_manager"
_KEPT_BLOCK = (
    "Prefix cache: a hit keeps its last block, because {title} drafts read no token after it. vLLM "
    "drops it for drafts that do; {key} false in the speculative config drops it here."
)
_ONE_GROUP = (
    "KV cache: draft and target share one group and keep all tokens. The draft attends only to the last "
    "{window}. Apart, vLLM would lose hits in the prefix cache, and cut the target's layers into small "
    "groups. --no-disable-hybrid-kv-cache-manager keeps them apart."
)
_LEFT_TO_VLLM = "left to vLLM, which replays it (--use-replayssm)."
_OUR_SCHEDULER = (
    "Scheduler: vLLM's own, but a prompt of one token gets no placeholder drafts, with which its text "
    "would be wrong. vLLM's warning of a custom scheduler class means this one."
)


def take_back(engine_args: Any) -> None:
    """Give each field that an earlier start set what it had, unless it was set anew since."""
    for field, (was, value) in vars(engine_args).pop(_MARK, {}).items():
        if getattr(engine_args, field) == value:
            setattr(engine_args, field, was)


def _set_for_a_start(engine_args: Any, field: str, value: object) -> None:
    """Set a field, which vLLM reads after it has built the SpeculativeConfig.

    A start may take these steps twice: a second wrapper, of another plugin, hides the first.
    """
    if getattr(engine_args, field) == value:
        return
    was = {**getattr(engine_args, _MARK, {}), field: (getattr(engine_args, field), value)}
    setattr(engine_args, _MARK, was)
    setattr(engine_args, field, value)


def keep_last_block(engine_args: Any, config: Any, case: Case) -> None:
    """Turn off vLLM's drop of a hit's last block for drafts that do not need it.

    The last row of a block of an EAGLE-3 draft was made with the token after the block, which may be
    another one in the text that hits. vLLM 0.32 drops it for DFlash drafts too; 0.33 does not.
    """
    if not case.spec.family.caches_target_states or not hasattr(config, _DROP):
        return
    # 0.33 asks another method, which knows DFlash.
    drops = getattr(config, "needs_eagle_block_drop", None) or config.use_eagle_block_drop
    if not drops() or _DROP in asked_speculative(engine_args):
        return
    config.disable_eagle_block_drop = True
    if engine_args.enable_prefix_caching is not False:
        log_once(logger, logging.INFO, _KEPT_BLOCK.format(title=case.spec.title, key=_DROP))


def share_the_targets_group(engine_args: Any, target: Any, case: Case) -> None:
    """Turn vLLM's manager of mixed caches off where only the draft's window would make them mixed.

    A target with windows or recurrent states of its own needs that manager.
    """
    if case.spec.draft_window is None or target.is_hybrid:
        return
    windowed = "sliding_attention" in (target.hf_text_config.to_dict().get("layer_types") or ())
    has_windows = windowed or bool(target.get_sliding_window()) or bool(target.attention_chunk_size)
    if has_windows or getattr(engine_args, _ONE_MANAGER) is not None:
        return
    _set_for_a_start(engine_args, _ONE_MANAGER, True)
    log_once(logger, logging.INFO, _ONE_GROUP.format(window=case.spec.draft_window))


def keep_prompts(engine_args: Any, half_built: Any) -> None:
    """Name the scheduler that keeps prompts of one token right next to recurrent states.

    With a schedule of K vLLM pads no request.
    """
    is_free = engine_args.scheduler_cls in (None, SCHEDULER)
    if half_built.model_config.is_hybrid and is_free and schedule_of(half_built) is None:
        _set_for_a_start(engine_args, "scheduler_cls", SCHEDULER)
        log_once(logger, logging.INFO, _OUR_SCHEDULER)


def apply_hybrid_state(engine_args: Any, half_built: Any, options: Options) -> None:
    """Choose how recurrent states are kept, once the draft is settled, and give the target the class
    that does it. A target without gated delta nets stays as it is."""
    target = half_built.model_config
    architecture = target.architecture
    if architecture not in REPLAYING_TARGETS:
        return
    if vllm_replays(half_built):
        log_once(logger, logging.INFO, f"Recurrent state of {architecture}: {_LEFT_TO_VLLM}")
        return
    choice = choose_scheme(half_built, options)
    tell_state(str(choice))
    log_once(logger, logging.INFO, f"Recurrent state of {architecture}: {choice}.")
    metrics.publish_state(engine_args, target, choice)
    if choice.replays:
        write_marker(
            target.hf_config,
            must_replay=options.hybrid_state == "replay" or needs_replay(half_built),
            replay_kernels=options.replay_kernels,
        )
        compat.use_architecture(target, REPLAYING_TARGETS[architecture])
