# SPDX-License-Identifier: Apache-2.0
"""Finds out how much memory this machine has, where the user does not say."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vllm_eagle_ext.errors import OptionsError

GIB = 2**30
_NODES, _LIMIT = "/sys/devices/system/node", "/sys/fs/cgroup/memory.max"


@dataclass(frozen=True, slots=True)
class Memory:
    gib: float  # of one GPU, or of one NUMA node
    origin: str  # for the reader; empty: as the user said
    capability: tuple[int, int] | None = None  # compute capability of the GPU, where one was read
    cuda: int | None = None  # major version of torch's CUDA, where a GPU was read


def read_memory(*, cpu: bool) -> Memory:
    """Read the memory of the smallest device, as vLLM takes the same share of each.

    Raises:
        OptionsError: there is no GPU here.
    """
    return _of_the_node() if cpu else _of_the_gpu()


def _of_the_gpu() -> Memory:
    if find_spec("torch") is None:
        raise _nothing_seen("torch, which would tell it, is not installed")
    import torch

    if not torch.cuda.is_available():
        raise _nothing_seen("no GPU is seen on this machine")
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    least = min(found, key=lambda device: device.total_memory)
    cuda = int((torch.version.cuda or "0").partition(".")[0])
    return Memory(least.total_memory / GIB, least.name, (least.major, least.minor), cuda)


def _nothing_seen(why: str) -> OptionsError:
    return OptionsError(
        field="--gpu-mem", value=None, allowed=f"GiB of one GPU; {why}",
        remedy="state it, such as --gpu-mem 80; --cpu plans for vLLM's CPU backend on this machine",
    )  # fmt: skip


def _of_the_node() -> Memory:
    """Count as vLLM's CPU backend does: one NUMA node, or less where a container is limited."""
    files = Path(_NODES).glob("node*/meminfo")
    totals = [re.search(r"MemTotal:\s+(\d+) kB", path.read_text()) for path in files]
    nodes = [int(found[1]) * 1024 for found in totals if found and int(found[1])]
    size = min(nodes, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path(_LIMIT)
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        size = min(size, int(text))
    return Memory(size / GIB, "a NUMA node of this machine" if nodes else "this machine")
