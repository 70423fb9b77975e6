"""The dtype that the examples compute in: bfloat16 only where the hardware multiplies it."""

from __future__ import annotations

import shutil


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None


def cpu_multiplies_bf16() -> bool:
    """Tell whether the CPU has AVX-512 BF16 or AMX; other x86 CPUs are faster in float32."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def choose_dtype() -> str:
    """Choose the target's dtype on a GPU, else by the CPU's instructions; print why it is float32."""
    if has_gpu():
        return "auto"
    if cpu_multiplies_bf16():
        return "bfloat16"
    print("This CPU has no instructions for products in bfloat16: it computes in float32.", flush=True)
    return "float32"
