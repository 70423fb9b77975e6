# SPDX-License-Identifier: Apache-2.0
"""What a user may ask of the engines that are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.preflight.offline.run import CheckResult

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


def require_served(result: CheckResult, field: str) -> None:
    """Refuse a draft that this package would not serve.

    Args:
        field: what the user typed, for the message.

    Raises:
        UnsupportedDraftError: with the first error that an engine's start would end with.
    """
    if errors := result.inspection.errors:
        first = errors[0].problem
        raise UnsupportedDraftError(
            field=f"{field}: {first.field}", value=first.value, allowed=first.allowed,
            remedy=first.remedy,
        )  # fmt: skip
