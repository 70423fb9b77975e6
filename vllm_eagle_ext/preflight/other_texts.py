# SPDX-License-Identifier: Apache-2.0
"""Warns of a verification whose texts are not those of the target without a draft."""

from __future__ import annotations

import logging

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.log import get_logger, log_once

logger = get_logger(__name__)

KEY = "rejection_sample_method"
_LOSSY = ("fly", "synthetic")  # "fly": since 0.33


def warn_of_other_texts(method: object) -> None:
    """Log what `refuse_other_texts` says; such an engine can start."""
    try:
        refuse_other_texts(method)
    except SpeculativeConfigError as error:
        log_once(logger, logging.WARNING, f"{error}.")


def refuse_other_texts(method: object) -> None:
    """Refuse a way to verify drafts that changes texts.

    Args:
        method: the key's value; None: vLLM's default.

    Raises:
        SpeculativeConfigError: it accepts drafts that the target would reject.
    """
    if method in _LOSSY:
        raise SpeculativeConfigError(
            field=f"speculative_config.{KEY}",
            value=method,
            allowed='"standard" or "block" for the texts of the target: this one accepts drafts that '
            "the target would reject, and texts differ from those without a draft",
            remedy="leave the key out, unless other texts are what you want",
        )
