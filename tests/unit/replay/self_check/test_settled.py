"""Which kernels a worker takes: by what is asked for and by its layers. If one of several raises, the
next; none where the device is lost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.support.engine import has_gpu
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.replay.ops.types import Implementation
from vllm_eagle_ext.replay.self_check import at_start
from vllm_eagle_ext.replay.self_check.compared import is_device_lost
from vllm_eagle_ext.replay.self_check.step import Shapes

if has_gpu():
    pytest.skip("vLLM's CPU kernels", allow_module_level=True)

from vllm_eagle_ext.replay.ops import cpu

SMALL = Shapes(H=1, HV=2, DK=64, DV=64, T=3)
FAULT = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`"
LOST = [torch.AcceleratorError(FAULT), RuntimeError("Triton Error [CUDA]: misaligned address")]


def settle(monkeypatch, error: Exception, where: str = "verify", *, shapes=(SMALL,), must_replay=False):
    """Two kinds of kernels, the first of which raises. Returns how often it was called, and what is
    settled or raised."""
    calls = []

    def fail(*_):
        calls.append(where)
        raise error

    parts = {"verify": cpu.verify, "plan": cpu.plan, "Commit": cpu.Commit} | {where: fail}
    candidates = (
        Implementation("chunked", SimpleNamespace(**parts), exact=True),
        Implementation("sequential", cpu, exact=True),
    )
    ops = SimpleNamespace(candidates=candidates, prepare=cpu.prepare)
    group = SimpleNamespace(world_size=1, rank_in_group=0)
    monkeypatch.setattr(at_start, "replay_ops", lambda: ops)
    monkeypatch.setattr(at_start, "get_tp_group", lambda: group)
    monkeypatch.setattr(at_start, "shapes_of", lambda layer: layer)
    try:
        return calls, at_start.resolve_kernels(shapes, "auto", must_replay=must_replay)
    except HybridStateError as refused:
        return calls, refused


@pytest.mark.parametrize("error", LOST, ids=["PyTorch", "Triton"])
@pytest.mark.parametrize("where", ["verify", "Commit"])
def test_nothing_is_tried_on_a_device_that_is_lost(monkeypatch, error, where):
    other = Shapes(H=1, HV=1, DK=64, DV=64, T=3)
    calls, refused = settle(monkeypatch, error, where, shapes=(SMALL, other))
    assert len(calls) == 1
    assert isinstance(refused, HybridStateError)
    kernel = {"verify": "verify", "Commit": "commit"}[where]
    said = f"{type(error).__name__}: {str(error).splitlines()[0]}, in {kernel}"
    assert refused.value == f"chunked kernels, {SMALL}: failed with {said}"
    assert refused.remedy.startswith("additional_config.eagle_ext.hybrid_state 'per_token'")
    assert "vllm-eagle selftest" in refused.remedy


@pytest.mark.parametrize("error", [RuntimeError("no such instruction"), torch.OutOfMemoryError("full")])
def test_other_errors_leave_the_next_kernels_to_try(monkeypatch, vllm_log, error):
    calls, settled = settle(monkeypatch, error)
    assert len(calls) == 1
    assert settled is cpu
    (line,) = vllm_log.containing("Self-check of replay FAILED")
    assert f"{type(error).__name__}: {error}, in verify" in line.getMessage()


def test_all_ranks_refuse_if_one_of_them_has_lost_its_device(monkeypatch):
    mine = at_start.run(at_start.Kernels("k", cpu, True, cpu.prepare, at_start.cpu_kernel), SMALL, CPU)
    assert mine.ok
    theirs = replace(mine, error="a fault", device_lost=True)

    def gather(checks, own, group):
        checks[:] = [own, [theirs]]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    checks = at_start.on_all_ranks([mine], SimpleNamespace(world_size=2, cpu_group=None))
    assert [check.device_lost for check in checks] == [False, True]
    assert str(checks[1]) == f"rank 1: k kernels, {SMALL}: failed with a fault"


CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("answers", "lost"), [(True, False), (False, True)])
def test_a_gpu_is_asked(monkeypatch, answers, lost):
    """CUDA raises the same class for what leaves the device alone."""

    def synchronize(_):
        if not answers:
            raise torch.AcceleratorError(FAULT)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert is_device_lost(torch.AcceleratorError("CUDA error: invalid argument"), CUDA) is lost
    assert not is_device_lost(ValueError("no such shape"), CUDA)


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
