# SPDX-License-Identifier: Apache-2.0
"""What else runs on this machine while engines are measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BUSY = 0.5  # of the cores: load of others before a measurement
DISTURBED = 0.25  # of the cores: work of others during one


def load_average() -> float | None:
    """Of the last minute, in processes that want to run; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def cores() -> int:
    return os.cpu_count() or 1


class OtherWork:
    """Cores that others kept busy: processes that this one did not start."""

    def __init__(self) -> None:
        self.cores = 0.0

    @contextmanager
    def during(self) -> Iterator[OtherWork]:
        began, all_before, ours_before = time.perf_counter(), _busy_s(), used_s()
        yield self
        spent = _busy_s() - all_before - (used_s() - ours_before)
        self.cores = max(0.0, spent / (time.perf_counter() - began))


def _busy_s() -> float:
    """Of all processors together."""
    import psutil

    found = psutil.cpu_times()
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user time as well
    return float(sum(found) - sum(getattr(found, name, 0.0) for name in idle))


def used_s() -> float:
    """Processor time of this process and of those that it started and that still run."""
    import psutil

    this = psutil.Process()
    used = 0.0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended
            times = process.cpu_times()
            used += times.user + times.system
    return used
