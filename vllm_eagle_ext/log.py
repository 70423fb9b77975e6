# SPDX-License-Identifier: Apache-2.0
"""Makes loggers below vLLM's own, so that its handlers, format and VLLM_LOGGING_LEVEL apply."""

from __future__ import annotations

import logging
from functools import lru_cache

NAME = "vllm-eagle-ext"


@lru_cache(maxsize=256)  # also the memory of what was said already
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    logger.log(level, message, stacklevel=2)  # names the caller, not this file


def get_logger(module: str) -> logging.Logger:
    """Return the logger `vllm.vllm_eagle_ext.preflight` for `vllm_eagle_ext.preflight`.

    Its lines begin with the package's name: vLLM's format names the file only.
    """
    logger = logging.getLogger(f"vllm.{module}")
    logger.addFilter(_named)  # a second time it changes nothing
    return logger


def _named(record: logging.LogRecord) -> bool:
    if not str(record.msg).startswith(NAME):
        record.msg = f"{NAME}: {record.msg}"
    return True
