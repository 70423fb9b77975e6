# SPDX-License-Identifier: Apache-2.0
"""Lets a hit in the prefix cache keep its last block, where the draft's rows of it hold for any text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.preflight.launch import Launch

logger = get_logger(__name__)

KEY = "disable_eagle_block_drop"
_ANNOUNCED = (
    "Prefix cache: a hit keeps its last block. The keys and values of {title} drafts follow only from "
    "the target's hidden states. vLLM drops the block for drafts that also read the next token, and "
    "calls keeping it experimental. {key} false in the speculative config drops it."
)


def keep_last_block(launch: Launch) -> None:
    """Turn off vLLM's drop of a hit's last block for drafts that do not need it.

    The last row of a block of an EAGLE-3 draft was made with the token after the block, which may be
    another one in the text that hits; vLLM therefore computes that block again. vLLM 0.32 does so for
    DFlash drafts too, whose rows read no such token; 0.33 does not.
    """
    config, case = launch.config, launch.case
    if config is None or case is None or not case.spec.record.caches_target_states:
        return
    if not hasattr(config, KEY) or not _drops(config) or _is_asked(launch):
        return
    config.disable_eagle_block_drop = True
    if launch.engine_args.enable_prefix_caching is not False:
        log_once(logger, logging.INFO, _ANNOUNCED.format(title=case.spec.title, key=KEY))


def _drops(config: Any) -> bool:
    """Return whether vLLM drops a hit's last block. 0.33 asks another method, which knows DFlash."""
    asked = getattr(config, "needs_eagle_block_drop", None)
    return bool((asked or config.use_eagle_block_drop)())


def _is_asked(launch: Launch) -> bool:
    given = launch.engine_args.speculative_config
    return isinstance(given, Mapping) and any(str(key).replace("-", "_") == KEY for key in given)
