# SPDX-License-Identifier: Apache-2.0
"""Modelled times of keeping recurrent states, by GPU. Written by `python -m benchmarks.kernel_model
--write`."""

from __future__ import annotations

# Compute capability -> device -> bytes of a state's element -> scheme -> K -> time.
LIKELY_US: dict[int, dict[str, dict[int, dict[str, dict[int, float]]]]] = {}
