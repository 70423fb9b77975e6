# SPDX-License-Identifier: Apache-2.0
"""Settles which release and device a plan is for, and remembers what of it nobody said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.device import ASSUMED_GPU, NEWEST_RELEASE, PREFILLS, Device, Prefill, key_dim
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.footprint import CPU_BLOCK, GPU_BLOCK
from vllm_eagle_ext.memory.geometry import Attention
from vllm_eagle_ext.plan.device import Memory
from vllm_eagle_ext.preflight.platforms import read_release
from vllm_eagle_ext.version import installed_vllm

_DEVICE = re.compile(r"sm_?(\d{1,2})(\d)[af]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Holds what the sizes of blocks follow from, apart from the target, each with where it is from."""

    serves: Device
    release_from: str
    device_from: str
    prefill: Prefill | None  # kernels of gated delta nets; None: there are none, or a CPU's
    prefill_exports: bool  # a block per request with prefix caching
    attention_alignment: int  # tokens

    @property
    def device(self) -> str:
        return self.serves.name

    def __str__(self) -> str:
        device = self.device if self.serves.on_cpu else f"{self.device} ({self.device_from})"
        on = f"{self.serves.release} ({self.release_from}) on {device}"
        if self.prefill is None:
            return on
        block = ", a state block more with prefix caching" * self.prefill_exports
        return f"{on}; GDN prefill: {self.prefill}{block}"


def assume(
    config: Mapping[str, Any], *, release: str | None, device: str | None, cpu: bool, gdn_prefill: str,
    attention_block: int | None, memory: Memory, attention: Attention, is_hybrid: bool,
    non_causal_draft: bool,
) -> Assumptions:  # fmt: skip
    """Fill in what a user left out.

    Args:
        config: the target's config.json.
        memory: of the device; it names the GPU where that was read.
        attention: of the target.
        is_hybrid: the target has gated delta nets.

    Raises:
        OptionsError: a release, device or backend that is not known.
    """
    vllm, release_from = _release(release)
    capability, device_from = _capability(device, memory, cpu=cpu)
    if gdn_prefill not in PREFILLS:
        raise OptionsError(
            field="--gdn-prefill", value=gdn_prefill, allowed=", ".join(PREFILLS),
            remedy="leave it out for what vLLM takes by itself",
        )  # fmt: skip
    cuda = memory.cuda if memory.cuda is not None and device is None else Device().cuda
    serves = Device(
        release=vllm, platform="cpu" if cpu else "cuda", capability=capability, cuda=cuda,
        gdn_prefill=gdn_prefill, key_dim=key_dim(text_config(config)),
    )  # fmt: skip
    alignment = attention_block or serves.attention_alignment(
        attention.head_dim, element_bytes=attention.element_bytes, non_causal_draft=non_causal_draft
    )
    return Assumptions(
        serves=serves, release_from=release_from, device_from=device_from,
        prefill=serves.prefill if is_hybrid and not cpu else None,
        prefill_exports=is_hybrid and serves.prefill_exports,
        attention_alignment=alignment or (CPU_BLOCK if cpu else GPU_BLOCK),
    )  # fmt: skip


def _release(asked: str | None) -> tuple[str, str]:
    if asked is None:
        found = installed_vllm()
        return (NEWEST_RELEASE, "assumed") if found is None else (found.partition("+")[0], "installed")
    return read_release(asked), "as given"


def _capability(asked: str | None, memory: Memory, *, cpu: bool) -> tuple[tuple[int, int] | None, str]:
    if asked is None:
        if cpu:
            return None, "as given"
        if memory.capability is not None:
            return memory.capability, "this machine's"
        return ASSUMED_GPU, "assumed"
    named = _DEVICE.fullmatch(asked.lower())
    if named is None or cpu:
        raise OptionsError(
            field="--device", value=asked,
            allowed="the compute capability of an NVIDIA GPU, without --cpu: sm_80 (A100), sm_90 (H100, "
            "H200), sm_100 (B200), sm_120 (RTX 50)",
            remedy="name one of them, or leave it out",
        )  # fmt: skip
    return (int(named[1]), int(named[2])), "as given"
