"""Requests of varying numbers of rows that only the device knows. A full graph is captured on one each.

What the host puts into a launch must not depend on them, and vLLM's convolution must take each request's
rows from the device, as the kernels of this package do (test_bits.py, test_chunked.py).
"""

from __future__ import annotations

import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from vllm.model_executor.layers.mamba.ops import causal_conv1d
from vllm.platforms import current_platform

from tests.unit.replay.cases import DEVICE, Shape, case, noise
from vllm_eagle_ext.replay import on_gpu
from vllm_eagle_ext.replay.ops import triton, triton_chunked, triton_plan

SHAPE = Shape(T=4)
ONE_ROW_EACH, RAGGED = [1] * 8, [4, 1, 2, 1, 0, 0, 0, 0]


@pytest.fixture
def convolution(monkeypatch) -> ModuleType:
    """vLLM's module as on a GPU: on a CPU it takes another function's name in the end."""
    if DEVICE == "cuda":
        return causal_conv1d
    spec = importlib.util.find_spec(causal_conv1d.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(type(current_platform), "is_cpu", lambda _: False)
        spec.loader.exec_module(module)
    monkeypatch.setattr(on_gpu, "causal_conv1d_update", module.causal_conv1d_update)
    return module


def layer_of(shape: Shape) -> SimpleNamespace:
    weight = noise(7, shape.channels, 1, shape.W, dtype=shape.model)
    return SimpleNamespace(conv1d=SimpleNamespace(weight=weight, bias=None), activation="silu")


def convolve(step: Any, layer: SimpleNamespace, x: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(len(step.counts), dtype=torch.int32, device=DEVICE)
    return on_gpu.GpuOps().convolve(layer, x, step.cache, SimpleNamespace(batch=step.batch, ones=ones))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter cannot take a mask of vLLM's kernel")
@pytest.mark.parametrize("counts", [RAGGED, [1, 1, 1], [4, 4]], ids=str)
def test_the_convolution_takes_each_requests_rows(counts):
    step, layer = case(SHAPE, counts), layer_of(SHAPE)
    x = noise(8, sum(counts), SHAPE.channels, dtype=SHAPE.model)
    before = step.cache.conv.clone()
    out = convolve(step, layer, x.clone())
    for request, (mine, rows) in enumerate(zip(out.split(counts), x.split(counts), strict=True)):
        if not counts[request]:
            continue
        block = int(step.batch.state_blocks[request])
        inputs = torch.cat([before[block, :, : SHAPE.W - 1], rows.T], dim=-1)
        weight = layer.conv1d.weight.float()
        expected = F.silu(F.conv1d(inputs.float()[None], weight, groups=SHAPE.channels))[0].T
        torch.testing.assert_close(mine.float(), expected, rtol=2e-2, atol=2e-2)
        # A commit of n rows reads from column n - 1 on.
        kept = step.cache.conv[block, :, : SHAPE.W - 2 + counts[request]]
        assert torch.equal(kept, inputs[:, 1:])


class Launches:
    """In place of a kernel: what it was launched with."""

    def __init__(self, into: list[Any]) -> None:
        self._into = into

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            dims = grid(constants) if callable(grid) else grid
            self._into.append((dims, [*map(seen, args)], constants))

        return launch


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value


@pytest.mark.parametrize("kernels", [triton, triton_chunked], ids=["sequential", "chunked"])
def test_launches_are_the_same_for_any_rows(monkeypatch, convolution, kernels):
    launched: list[Any] = []
    for module, names in (
        (triton, ("_verify", "_apply_states")),
        (triton_chunked, ("_verify", "_apply_states")),
        (triton_plan, ("_plan", "_move_conv_states")),
        (convolution, ("_causal_conv1d_update_kernel",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Launches(launched))
    step, layer = case(SHAPE, ONE_ROW_EACH), layer_of(SHAPE)
    x, out, plan = noise(8, 8, SHAPE.channels, dtype=SHAPE.model), step.out(), step.plan()
    sampled, ones = step.sampled([1] * 8), torch.ones(8, dtype=torch.int32, device=DEVICE)
    apply = kernels.Commit([(step.cache, step.gating, 0)], SHAPE.W - 1)

    def run() -> list[Any]:
        launched.clear()
        asked = SimpleNamespace(batch=step.batch, ones=ones)
        on_gpu.GpuOps().convolve(layer, x, step.cache, asked)
        kernels.verify(step.rows, step.gating, step.cache, step.batch, out)
        kernels.plan(step.batch, sampled, None, None, plan)
        apply(step.batch, plan)
        return [*launched]

    captured = run()
    assert len(captured) == 5
    step.batch.starts.copy_(torch.tensor([0, *RAGGED]).cumsum(0))
    sampled.copy_(torch.tensor([3, 1, 2, 1, 0, 0, 0, 0]))
    assert run() == captured
