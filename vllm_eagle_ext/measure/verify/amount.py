# SPDX-License-Identifier: Apache-2.0
"""How much is measured, usually and with --quick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USUAL: Mapping[str, int] = {"num_prompts": 20, "max_tokens": 64, "samples": 1000}
QUICK: Mapping[str, int] = {"num_prompts": 6, "max_tokens": 48, "samples": 300}
QUICK_ENGINE: Mapping[str, Any] = {"enforce_eager": True}  # no compilation, no CUDA graphs
