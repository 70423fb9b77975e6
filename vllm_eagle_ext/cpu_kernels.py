# SPDX-License-Identifier: Apache-2.0
"""Tells which kernels vLLM has for this CPU, where they depend on its instruction set.

vLLM's CPU wheel holds three libraries and loads one (`CpuPlatform.import_kernels`): for AVX-512 with
bf16, for AVX-512, and for AVX2. `ForeseenKernels` tells them from the CPU's flags, without vLLM;
`LoadedKernels` asks the library that a process has loaded.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

# Operators: the one that multiplies packed weights, and one that every library has.
_PACKED, _COMMON = "cpu_gemm_wna16", "rms_norm"
_ON_ARM = "_C on Arm"
# Libraries without the operator of packed weights, by release: x86's as loaded, Arm's by reading.
WITHOUT_PACKED = {"0.32": ("_C_AVX2", _ON_ARM)}
NEWEST = "0.32"  # of the table: a newer release is taken to lack the same
_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")


def cpu_flags() -> frozenset[str]:
    """Read the names that Linux gives to this CPU's instructions; empty where it is not told."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(next((value.split() for name, _, value in lines if name.strip() == "flags"), ()))


@dataclass(frozen=True)
class ForeseenKernels:
    """Foresees the kernels of a release from the kind of CPU and its flags."""

    release: str  # of vLLM, such as "0.32.1"
    flags: frozenset[str] = field(default_factory=lambda: cpu_flags())

    @property
    def library(self) -> str | None:
        """Name the library that vLLM would load; None: it is not told, and nothing is missed."""
        if platform.machine() in _ARM:
            return _ON_ARM
        if platform.machine() not in _X86 or not self.flags:
            return None
        if "avx512f" not in self.flags:
            return "_C_AVX2"
        return "_C" if "avx512_bf16" in self.flags else "_C_AVX512"

    @property
    def packed_weights(self) -> bool:
        lacking = WITHOUT_PACKED.get(".".join(self.release.split(".")[:2]), WITHOUT_PACKED[NEWEST])
        return self.library not in lacking

    @property
    def exact_int8(self) -> bool:
        """Tell whether such a product is exact: on x86 without instructions for it (VNNI), oneDNN adds
        pairs of products in 16 bits."""
        on_x86 = self.library not in (None, _ON_ARM)
        return not on_x86 or not self.flags.isdisjoint(("avx512_vnni", "avx_vnni"))

    @property
    def bf16(self) -> bool:
        return self.library != "_C_AVX2"

    @property
    def tiles(self) -> bool:
        return "amx_tile" in self.flags


class LoadedKernels:
    """Asks the library that this process has loaded; what fails to answer counts as there."""

    @cached_property
    def packed_weights(self) -> bool:
        import torch

        _load()
        return hasattr(torch.ops._C, _PACKED) or not hasattr(torch.ops._C, _COMMON)

    @cached_property
    def exact_int8(self) -> bool:
        """Multiply the largest integers, whose sums of two need more than 16 bits."""
        import torch

        size, largest = 64, 127
        weight = torch.full((size, size), largest, dtype=torch.int8)  # [N, K]
        out = torch.empty(1, size)
        try:
            ops = _load()
            one = torch.ones(size)
            handler = ops.create_onednn_scaled_mm(weight.t(), one, torch.float32, True, False, 1)
            row = torch.full((1, size), largest, dtype=torch.int8)
            ops.onednn_scaled_mm(handler, row, out, torch.ones(1, 1), None, None, None)
        except Exception:  # noqa: BLE001 - what cannot be asked is no reason to refuse
            return True
        return bool((out == size * largest**2).all())

    @cached_property
    def bf16(self) -> bool:
        import torch

        try:
            _load().create_onednn_mm(torch.zeros(32, 32, dtype=torch.bfloat16), 1)
        except RuntimeError:  # oneDNN's, where vLLM falls back
            return False
        except Exception:  # noqa: BLE001 - what cannot be asked is not warned of
            return True
        return True

    @cached_property
    def tiles(self) -> bool:
        """Ask as vLLM's kernel for blocks of eight-bit floats does."""
        import torch

        return torch.cpu._is_amx_tile_supported()


def _load() -> Any:
    """Load vLLM's library, as a worker would, and return the functions that call it."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return _custom_ops
