# SPDX-License-Identifier: Apache-2.0
"""What a plan is asked for; settles which release and device that is, and how much memory it has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.attention import WindowOption
from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.device import ASSUMED_GPU, NEWEST_RELEASE, PREFILLS, Device, key_dim
from vllm_eagle_ext.start.check import read_release
from vllm_eagle_ext.version import installed_vllm

GIB = 2**30
_NODES, _LIMIT = "/sys/devices/system/node", "/sys/fs/cgroup/memory.max"
_CAPABILITY = re.compile(r"sm_?(\d{1,2})(\d)[af]?")
# Bytes of a key's or value's element; None: as the model's dtype.
KV_DTYPES: dict[str, int | None] = {
    "auto": None, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
# vLLM's defaults for a server on a GPU of 70 GiB or more; on a CPU 128.
MAX_NUM_SEQS, UTILIZATION = 1024, 0.92
# Activations, CUDA graphs and the runtime: measured by vLLM at start, not known before.
RESERVE_GIB = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    target: str | None  # None: as the draft names it
    target_revision: str | None = None
    gpu_mem: float | None = None  # GiB of one GPU; None: of this machine's
    tp: int = 1
    max_model_len: int | None = None  # None: the target's
    max_num_seqs: int = MAX_NUM_SEQS
    gpu_memory_utilization: float = UTILIZATION
    prefix_caching: bool | None = None  # None: as `check` would have it served
    kv_dtype: str = "auto"
    draft: str | None = None
    draft_window: WindowOption = None  # as the option of that name
    draft_vocabulary: str | None = None  # as the option of that name
    weights_gib: float | None = None
    reserve_gib: float = RESERVE_GIB
    cpu: bool = False
    download_dir: str | None = None
    vllm: str | None = None  # release; None: the one installed, else the newest known
    device: str | None = None  # sm_90, ..; None: this machine's GPU, else sm_90
    gdn_prefill: str = "auto"  # as vLLM's --gdn-prefill-backend
    mamba_block_size: int | None = None  # as vLLM's option
    attention_block: int | None = None  # tokens that a block is a multiple of; None: as vLLM's default


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


def settle_device(
    request: PlanRequest, config: Mapping[str, Any], memory: Memory
) -> tuple[Device, str, str]:
    """Return the device with its release, and where release and device are from.

    Args:
        config: the target's config.json.
        memory: of the device; it names the GPU where that was read.

    Raises:
        OptionsError: a release, device or backend that is not known.
    """
    release, release_from = _release(request.vllm)
    capability, device_from = _capability(request, memory)
    if request.gdn_prefill not in PREFILLS:
        raise OptionsError(
            field="--gdn-prefill", value=request.gdn_prefill, allowed=", ".join(PREFILLS),
            remedy="leave it out for what vLLM takes by itself",
        )  # fmt: skip
    read_cuda = memory.cuda if request.device is None else None
    device = Device(
        release=release, platform="cpu" if request.cpu else "cuda", capability=capability,
        cuda=Device().cuda if read_cuda is None else read_cuda,
        gdn_prefill=request.gdn_prefill, key_dim=key_dim(text_config(config)),
    )  # fmt: skip
    return device, release_from, device_from


def _release(given: str | None) -> tuple[str, str]:
    if given is not None:
        return read_release(given), "as given"
    installed = installed_vllm()
    if installed is None:
        return NEWEST_RELEASE, "assumed"
    return installed.partition("+")[0], "installed"


def _capability(request: PlanRequest, memory: Memory) -> tuple[tuple[int, int] | None, str]:
    if request.device is None:
        if request.cpu:
            return None, "as given"
        if memory.capability is not None:
            return memory.capability, "this machine's"
        return ASSUMED_GPU, "assumed"
    named = _CAPABILITY.fullmatch(request.device.lower())
    if named is None or request.cpu:
        raise OptionsError(
            field="--device", value=request.device,
            allowed="the compute capability of an NVIDIA GPU, without --cpu: sm_80 (A100), sm_90 (H100, "
            "H200), sm_100 (B200), sm_120 (RTX 50)",
            remedy="name one of them, or leave it out",
        )  # fmt: skip
    return (int(named[1]), int(named[2])), "as given"
