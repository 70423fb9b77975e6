# SPDX-License-Identifier: Apache-2.0
"""Keeps prompts of one token right on targets with recurrent states: see `schedulers.py`."""

from __future__ import annotations

import logging

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.state_scheme import REPLAYING_TARGETS
from vllm_eagle_ext.preflight.engine_args import set_for_a_start
from vllm_eagle_ext.preflight.launch import Launch

logger = get_logger(__name__)

KEY = "scheduler_cls"
SCHEDULER = "vllm_eagle_ext.schedulers.build_scheduler"  # which vLLM resolves and calls
_ANNOUNCED = (
    "Scheduler: vLLM's own, but a prompt of one token gets no placeholder drafts, with which its text "
    "would be wrong. vLLM's warning of a custom scheduler class means this one."
)


def keep_prompts(launch: Launch) -> None:
    """Name the scheduler, once it is settled that an engine with recurrent states drafts."""
    target = launch.target
    is_ours = target.architecture in REPLAYING_TARGETS or launch.case is not None
    if launch.config is None or not target.is_hybrid or not is_ours:
        return
    if launch.schedule is not None:  # with which vLLM pads no request
        return
    try:
        refuse_foreign_scheduler(launch.engine_args.scheduler_cls)
    except HybridStateError as error:
        log_once(logger, logging.WARNING, f"{error}.")
        return
    set_for_a_start(launch.engine_args, KEY, SCHEDULER)
    log_once(logger, logging.INFO, _ANNOUNCED)


def refuse_foreign_scheduler(scheduler_cls: object) -> None:
    """Refuse another scheduler on a target with recurrent states; a start warns.

    Raises:
        HybridStateError: a scheduler is named.
    """
    if scheduler_cls not in (None, SCHEDULER):  # ours: of a copy of an earlier start's arguments
        raise HybridStateError(
            field=KEY,
            value=scheduler_cls,
            allowed="none with a draft and a target with recurrent states: vLLM's schedulers add "
            "placeholder drafts to a prompt of one token that joins running requests, and its text is "
            "wrong; this package's scheduler does not",
            remedy="leave the option out, or send no such prompts",
        )
