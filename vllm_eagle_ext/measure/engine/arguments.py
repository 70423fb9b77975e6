# SPDX-License-Identifier: Apache-2.0
"""Keywords of LLM() that a user may pass on to the engines that are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError

# The commands decide these by options of their own, or need them as they are.
_RESERVED = (
    "model", "speculative_config", "additional_config", "worker_extension_cls", "disable_log_stats",
    "logprobs_mode",
)  # fmt: skip


def refuse_reserved(engine: Mapping[str, Any]) -> None:
    """Refuse keywords in the value of --engine that are not the user's to give there.

    Raises:
        SpeculativeConfigError: there are some; the message names them.
    """
    if taken := [name for name in _RESERVED if name in engine]:
        raise SpeculativeConfigError(
            field="--engine", value=taken,
            allowed="other arguments of LLM() than " + ", ".join(_RESERVED),
            remedy="use the command's options for target, draft, K, method and --eagle-ext",
        )  # fmt: skip
