# SPDX-License-Identifier: Apache-2.0
"""Tells where the option `adaptive_verification` does nothing: it permits what vLLM's key asks for."""

from __future__ import annotations

from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.state_scheme import ADAPTIVE_OPTION, REPLAYING_TARGETS

_KEY = "enable_adaptive_verification"
_LEAVE = "leave the option out"


def refuse_without_use(architecture: str, *, option: bool, key: bool) -> None:
    """Refuse the option where it changes nothing; an engine can start with it, and a start warns.

    Args:
        option: of this package.
        key: vLLM's, of the speculative config.

    Raises:
        OptionsError: the target does not need it, or vLLM's key is missing.
    """
    if not option:
        return
    if architecture not in REPLAYING_TARGETS:
        allowed = (
            f"false for {architecture}, where vLLM's {_KEY} needs no option of this package; true for "
        )
        raise _without_use(allowed + ", ".join(REPLAYING_TARGETS), _LEAVE)
    if not key:
        allowed = f"true with vLLM's {_KEY}, which it permits on this target and does not turn on"
        raise _without_use(allowed, f'add {{"{_KEY}": true}} to the speculative config, or {_LEAVE}')


def refuse_without_drafts(*, option: bool) -> None:
    """Refuse the option in a run without drafts, which has nothing to verify.

    Raises:
        OptionsError: the option is on.
    """
    if option:
        raise _without_use("false without a speculative config", f"{_LEAVE}, or name a draft")


def _without_use(allowed: str, remedy: str) -> OptionsError:
    return OptionsError(field=ADAPTIVE_OPTION, value=True, allowed=allowed, remedy=remedy)
