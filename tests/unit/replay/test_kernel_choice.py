"""Which kernels a worker may run, by what is asked for and by its layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.replay.self_check import at_start
from vllm_eagle_ext.replay.self_check.step import Shapes

PUBLISHED = Shapes(H=16, HV=48, DK=128, DV=128, T=16)
NARROW = replace(PUBLISHED, DK=40)


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch):
    pytest.importorskip("triton")
    from vllm_eagle_ext.replay.on_cpu import CpuOps
    from vllm_eagle_ext.replay.on_gpu import GpuOps

    made = {"cpu": CpuOps, "gpu": GpuOps}[request.param]()
    monkeypatch.setattr(at_start, "replay_ops", lambda: made)
    return request.param


def names(asked: str, *shapes: Shapes) -> list[str]:
    return [kernels.name for kernels in at_start.candidates(asked, shapes)]


def test_auto_prefers_chunked_kernels_on_a_gpu(platform):
    assert names("auto", PUBLISHED) == ["chunked", "sequential"][platform == "cpu" :]


def test_auto_leaves_out_what_cannot_run(platform):
    for shapes in (NARROW, replace(PUBLISHED, T=65), replace(PUBLISHED, model=torch.float32)):
        assert names("auto", PUBLISHED, shapes) == ["sequential"]


def test_what_is_asked_for_runs_alone(platform):
    assert names("sequential", NARROW) == ["sequential"]
    if platform == "gpu":
        assert names("chunked", PUBLISHED) == ["chunked"]
        with pytest.raises(HybridStateError, match="replay_kernels.*multiples of 16"):
            at_start.candidates("chunked", [PUBLISHED, NARROW])
