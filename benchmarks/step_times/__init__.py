# SPDX-License-Identifier: Apache-2.0
"""Times of a step, from a model or from what a user's machine measured; `seconds` of each is one step."""

from benchmarks.step_times.measured import read_times
from benchmarks.step_times.modelled import GPUS, Gpu, Modelled, Pair, StepTimes, pair_of

__all__ = ["GPUS", "Gpu", "Modelled", "Pair", "StepTimes", "pair_of", "read_times"]
