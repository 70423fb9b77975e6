# SPDX-License-Identifier: Apache-2.0
"""Loggers below vLLM's own, so that its handlers, format and VLLM_LOGGING_LEVEL apply."""

from __future__ import annotations

import logging
from functools import lru_cache


@lru_cache(maxsize=256)  # also the memory of what was said already
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    logger.log(level, message, stacklevel=2)  # names the caller, not this file


def get_logger(module: str) -> logging.Logger:
    """Return the logger `vllm.vllm_eagle_ext.preflight` for `vllm_eagle_ext.preflight`."""
    return logging.getLogger(f"vllm.{module}")
