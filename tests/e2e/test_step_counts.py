"""Python calls and torch operations of a decode step, ours against stock vLLM: counts, no times.

Every draft is accepted, so that all engines walk through the same steps.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from tests.support.batches import Engine, start_engines
from tests.support.dense import POSTNORM_AUX_LAYERS, STOCK
from tests.support.engine import TINY, EngineFailedError
from tests.support.step_counts import STEPS

pytestmark = [pytest.mark.e2e]

K = 3
MORE_CALLS = 0.02
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]]
