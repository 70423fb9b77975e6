# SPDX-License-Identifier: Apache-2.0
"""Tells which kernels vLLM has for this CPU, where they depend on its instruction set.

vLLM's CPU wheel holds three libraries and loads one (`CpuPlatform.import_kernels`): for AVX-512 with
bf16, for AVX-512, and for AVX2. `ForeseenKernels` tells them from the CPU's flags, without vLLM;
`LoadedKernels` asks the library that a process has loaded.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.quantisation import quantised_weights
from vllm_eagle_ext.errors import SpeculativeConfigError

BF16_FALLBACK = (
    "This CPU has no AVX-512, so that vLLM multiplies bfloat16 by a fallback. The fallback takes K + 1 "
    "times as long for the K + 1 rows of a verified draft: a draft hardly pays. A dense target is "
    "faster with --dtype float32."
)
FIELD = "quantisation of the draft's weights"
# Operators: the one that multiplies packed weights, and one that every library has.
_PACKED, _COMMON = "cpu_gemm_wna16", "rms_norm"
_ON_ARM = "_C on Arm"
# Libraries without the operator of packed weights, by release: x86's as loaded, Arm's by reading.
WITHOUT_PACKED = {"0.32": ("_C_AVX2", _ON_ARM)}
NEWEST = "0.32"  # of the table: a newer release is taken to lack the same
_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")


class CpuKernels(Protocol):
    """Answers what a CPU's kernels can compute."""

    @property
    def packed_weights(self) -> bool:
        """Tell whether weights of a few bits that are packed into integers can be multiplied."""

    @property
    def exact_int8(self) -> bool:
        """Tell whether a product of eight-bit integers is exact, not cut off at 16 bits."""

    @property
    def bf16(self) -> bool:
        """Tell whether bfloat16 has a kernel of its own, not a fallback."""


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


def _load() -> Any:
    """Load vLLM's library, as a worker would, and return the functions that call it."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return _custom_ops


def refuse_missing_kernels(case: Case, kernels: CpuKernels) -> None:
    """Refuse a quantised draft that this CPU would fail to multiply, or multiply wrongly.

    Raises:
        SpeculativeConfigError: vLLM has no kernel for it here, or one that cuts sums off.
    """
    for value, why in _missing(case, kernels):
        raise SpeculativeConfigError(
            field=FIELD,
            value=value,
            allowed=f"plain weights or eight-bit floats on this CPU: {why}",
            remedy="use a draft with plain weights, or serve this one on a GPU or on a CPU with AVX-512 "
            "and VNNI",
        )


def _missing(case: Case, kernels: CpuKernels) -> Iterator[tuple[str, str]]:
    kinds = set(_kinds(case))
    if "packed" in kinds and not kernels.packed_weights:
        yield "weights packed into integers", "vLLM's library for it has no kernel for packed ones"
    if "int8" in kinds and not kernels.exact_int8:
        why = "it lacks VNNI instructions, without which oneDNN cuts sums off at 16 bits, silently"
        yield "eight-bit integers", why


def _kinds(case: Case) -> Iterator[str]:
    """Name what the draft's quantised weights are: by the files, else by what config.json states."""
    if not case.has_tensors:
        yield from _stated_kinds(case.config.quantization_config or {})
        return
    for module, suffix in quantised_weights(case.files.tensors).items():
        dtype = case.files.tensors[module + suffix].dtype
        if dtype == "I32":
            yield "packed"
        elif dtype == "I8":
            yield "int8"


def _stated_kinds(config: Mapping[str, Any]) -> Iterator[str]:
    method, groups = str(config.get("quant_method")), config.get("config_groups")
    if "awq" in method or "gptq" in method:
        yield "packed"
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if not isinstance(group, Mapping) or not isinstance(weights := group.get("weights"), Mapping):
            continue
        if weights.get("type", "int") == "int":
            yield "int8" if isinstance(group.get("input_activations"), Mapping) else "packed"
