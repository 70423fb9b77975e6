from __future__ import annotations

import pytest


@pytest.fixture
def emulated(monkeypatch):
    """vLLM's emulation of the formats for which a CPU has no kernel."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    for table, kernel in (
        (linear._POSSIBLE_NVFP4_KERNELS, linear.EmulationNvFp4LinearKernel),
        (linear._POSSIBLE_MXFP8_KERNELS, linear.EmulationMxfp8LinearKernel),
    ):
        monkeypatch.setitem(table, PlatformEnum.CPU, [kernel])
