# SPDX-License-Identifier: Apache-2.0
"""Times of a step, from a model or from what a machine measured."""

from benchmarks.step_model.measured import read_times
from benchmarks.step_model.modelled import GPUS, RATES, Gpu, Modelled, Pair, StepTimes, pair_of

__all__ = ["GPUS", "RATES", "Gpu", "Modelled", "Pair", "StepTimes", "pair_of", "read_times"]
