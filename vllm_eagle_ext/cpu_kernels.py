# SPDX-License-Identifier: Apache-2.0
"""Asks which kernels vLLM has for this CPU, where they depend on its instruction set.

vLLM's CPU wheel holds three libraries and loads one (`CpuPlatform.import_kernels`): for AVX-512 with
bf16, for AVX-512, and for AVX2.
"""

from __future__ import annotations

import platform
from functools import cache, cached_property
from typing import Any

# Operators: the one that multiplies packed weights, and one that every library has.
_PACKED, _COMMON = "cpu_gemm_wna16", "rms_norm"


@cache
def loaded_kernels() -> LoadedKernels | None:
    """Return the kernels of this process's CPU; None: vLLM serves on another platform."""
    from vllm.platforms import current_platform

    return LoadedKernels() if current_platform.is_cpu() else None


def lacks_avx512() -> bool:
    """Tell whether vLLM would load its library for AVX2, by what it asks itself."""
    import torch

    return platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_supported()


class LoadedKernels:
    """Asks the library that this process has loaded; what fails to answer counts as there."""

    @cached_property
    def packed_weights(self) -> bool:
        """Tell whether weights of a few bits that are packed into integers can be multiplied."""
        import torch

        _load()
        return hasattr(torch.ops._C, _PACKED) or not hasattr(torch.ops._C, _COMMON)

    @cached_property
    def exact_int8(self) -> bool:
        """Tell whether a product of eight-bit integers is exact, not cut off at 16 bits.

        The largest integers tell, whose sums of two need more.
        """
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
        """Tell whether bfloat16 has a kernel of its own, not a fallback."""
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
        """Tell whether matrices can be multiplied tile by tile (AMX), as vLLM's kernel for blocks of
        eight-bit floats asks."""
        import torch

        return torch.cpu._is_amx_tile_supported()


def _load() -> Any:
    """Load vLLM's library, as a worker would, and return the functions that call it."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return _custom_ops
