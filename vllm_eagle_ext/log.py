# SPDX-License-Identifier: Apache-2.0
"""Makes loggers below vLLM's own, so that its handlers, format and VLLM_LOGGING_LEVEL apply."""

from __future__ import annotations

import logging
from functools import lru_cache

from vllm_eagle_ext.printable import printable

NAME = "vllm-eagle-ext"


@lru_cache(maxsize=256)  # also the memory of what was said already
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    logger.log(level, message, stacklevel=2)  # names the caller, not this file


def get_logger(module: str) -> logging.Logger:
    """Return the logger `vllm.vllm_eagle_ext.start` for `vllm_eagle_ext.start`.

    Its lines begin with the package's name, which vLLM's format leaves out.
    """
    logger = logging.getLogger(f"vllm.{module}")
    if _shown not in logger.filters:
        logger.addFilter(_shown)
    return logger


def _shown(record: logging.LogRecord) -> bool:
    """Keep the message on one line, whatever a stranger's file put into it."""
    try:
        message = printable(record.getMessage())
    except Exception:  # noqa: BLE001 - arguments that do not fit: the handler tells of them
        return True
    record.msg, record.args = message if message.startswith(NAME) else f"{NAME}: {message}", None
    return True
