# SPDX-License-Identifier: Apache-2.0
"""Times that a user's machine measured: by `bench --schedule`, or by a `selftest` on a GPU."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.step_model.modelled import GPUS, Modelled, Pair, StepTimes, state_times
from tests.support.virtual_clock import Load
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.measure.bench.results import Report
from vllm_eagle_ext.measure.selftest.run import FORMAT


def read_times(path: Path, pair: Pair) -> StepTimes:
    """Read either file.

    Raises:
        OptionsError: it is neither, or lacks what the clock needs.
    """
    try:
        file = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(file, dict) and file.get("selftest") == FORMAT:
            return _of_selftest(file, pair)
        return Tuned.of(Report.model_validate(file))
    except OptionsError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refused(path.name, f"a file that can be read ({type(error).__name__})") from None


def _of_selftest(file: dict[str, Any], pair: Pair) -> Modelled:
    """The model, with the bandwidth of a copy and the times of states that this GPU showed."""
    name = str(file["device"]["name"])
    gpu = next((gpu for gpu in GPUS.values() if re.search(rf"\b{gpu.name}\b", name)), None)
    bandwidth = file["copy_bandwidth"]
    if gpu is None or not bandwidth:
        raise _refused(name, f"a self-test with times, on {' or '.join(GPUS)}")
    times = state_times(file)
    if len(times["replay"]) < 2:
        raise _refused(name, "times of two K or more")
    return Modelled(pair, replace(gpu, bandwidth=float(bandwidth), state_us=times))


@dataclass(frozen=True)
class Tuned:
    """Step times of a schedule, between its loads in proportion, beyond them as at the nearest.

    A prompt's row costs what one more verified row costs at the largest load.
    """

    seconds_at: dict[tuple[int, int, int], float]  # K, context, requests
    row: float

    @classmethod
    def of(cls, report: Report) -> Tuned:
        times = {
            (row.variant.k, row.context, row.concurrency): row.step_ms / 1e3
            for row in report.of("sweep")
            if row.step_ms and row.variant.kind == ("held" if row.variant.k else "none")
        }
        ks = {k for k, _, _ in times}
        if len(ks) < 2 or 0 not in ks:
            raise _refused("report.json", "that of --schedule, with step times of K = 0 and another K")
        most, longest = max(n for _, _, n in times), max(c for _, c, _ in times)
        tuned = cls(times, 0.0)
        steps = [tuned._at(k, longest, most) for k in (0, max(ks))]
        return cls(times, max(0.0, steps[1] - steps[0]) / (most * max(ks)))

    def seconds(self, scheme: str, k: int, load: Load) -> float:
        contexts = sorted({c for at_k, c, _ in self.seconds_at if at_k == k})
        if not contexts:
            raise _refused(f"K = {k}", f"one of {sorted({k for k, *_ in self.seconds_at})}")
        by_context = [(float(c), self._at(k, c, load.requests)) for c in contexts]
        return _between(by_context, load.context) + self.row * load.prompt_rows

    def _at(self, k: int, context: int, requests: int) -> float:
        points = [
            (float(n), s) for (at_k, c, n), s in self.seconds_at.items() if (at_k, c) == (k, context)
        ]
        return _between(sorted(points), requests)


def _between(points: list[tuple[float, float]], at: float) -> float:
    right = bisect_left([x for x, _ in points], at)
    if right in (0, len(points)):
        return points[min(right, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def _refused(value: object, allowed: str) -> OptionsError:
    return OptionsError(
        field="--times", value=value, allowed=allowed,
        remedy="name a report.json of `vllm-eagle bench --schedule`, or the JSON of a GPU's `selftest`",
    )  # fmt: skip
