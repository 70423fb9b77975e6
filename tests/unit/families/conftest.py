from __future__ import annotations

import pytest

from tests.support.engine import has_gpu


@pytest.fixture(autouse=True)
def _layers_on_a_cpu(request):
    """These tests build vLLM's layers on its CPU platform, in a group of one process."""
    if has_gpu():
        pytest.skip("builds vLLM's layers on its CPU platform")
    request.getfixturevalue("single_process_group")


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


@pytest.fixture
def nvfp4a16(monkeypatch):
    """vLLM's layers of NVFP4 with activations of 16 bits, which a GPU alone can run: to be loaded."""
    from vllm.model_executor.kernels.linear import MarlinNvFp4LinearKernel

    monkeypatch.setattr(MarlinNvFp4LinearKernel, "is_supported", lambda *_: (True, None))
