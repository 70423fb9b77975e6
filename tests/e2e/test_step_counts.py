"""Python calls and torch operations of a decode step, ours against stock vLLM: counts, no times.

Every draft is accepted, so that all engines walk through the same steps.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.e2e]

K = 3
MORE_CALLS = 0.02
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]]
