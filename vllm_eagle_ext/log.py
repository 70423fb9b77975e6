# SPDX-License-Identifier: Apache-2.0
"""Loggers below vLLM's own, so that its handlers, format and VLLM_LOGGING_LEVEL apply."""

from __future__ import annotations

import logging
from functools import lru_cache

from vllm_eagle_ext.printable import printable


@lru_cache(maxsize=256)  # also the memory of what was said already
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    logger.log(level, message, stacklevel=2)  # names the caller, not this file


def get_logger(module: str) -> logging.Logger:
    """Return the logger `vllm.vllm_eagle_ext.preflight` for `vllm_eagle_ext.preflight`."""
    logger = logging.getLogger(f"vllm.{module}")
    if _make_printable not in logger.filters:
        logger.addFilter(_make_printable)
    return logger


def _make_printable(record: logging.LogRecord) -> bool:
    """Keep the message on one line, whatever a stranger's file put into it."""
    record.msg, record.args = printable(record.getMessage()), None
    return True
