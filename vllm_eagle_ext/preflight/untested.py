# SPDX-License-Identifier: Apache-2.0
"""Refuses drafts that need this package, on a vLLM that it was not tested with."""

from __future__ import annotations

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.stock_gaps import stock_gaps
from vllm_eagle_ext.compat import TESTED_VLLM
from vllm_eagle_ext.errors import UnsupportedVllmError


def refuse_gaps(case: Case, version: str) -> None:
    """Refuse a draft that stock vLLM would misload.

    Args:
        version: of a vLLM outside the tested range.

    Raises:
        UnsupportedVllmError: there is something that stock vLLM would do wrongly.
    """
    gaps = stock_gaps(case)
    if not gaps:
        return
    raise UnsupportedVllmError(
        field="vLLM version",
        value=version,
        allowed=f"{TESTED_VLLM} for the draft {case.spec.model!r}, which plain vLLM would serve "
        "wrongly: " + "; ".join(gaps),
        remedy='install a tested vLLM, or go on with {"eagle_ext": {"untested_vllm": true}}, or '
        'accept stock behaviour with {"eagle_ext": {"enabled": false}}',
    )
