"""The self-check on Triton kernels, against vLLM's own, and its bound in fp64."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.support.broken_kernels import SEEN, broken
from tests.unit.replay.cases import DEVICE
from vllm_eagle_ext.measure.selftest import run as selftest
from vllm_eagle_ext.replay.ops import reference, triton_chunked
from vllm_eagle_ext.replay.ops import triton as ops
from vllm_eagle_ext.replay.self_check import compared as check
from vllm_eagle_ext.replay.self_check.compared import Kernels, run
from vllm_eagle_ext.replay.self_check.step import Shapes, copy_of, gpu_kernel, make_step

SMALL = Shapes(H=1, HV=2, DK=16, DV=16, T=3)
HERE = torch.device(DEVICE)
SEQUENTIAL = Kernels("sequential", ops, True, lambda batch, _: batch, gpu_kernel)
CHUNKED = Kernels("chunked", triton_chunked, False, lambda batch, _: batch, gpu_kernel)


def failed(result) -> set[str]:
    assert result.error is None
    return {part.name for part in result.parts if not part.ok}


@pytest.mark.parametrize(
    "shapes",
    [SMALL, replace(SMALL, state=torch.bfloat16), replace(SMALL, dim_first=True), replace(SMALL, T=6)],
    ids=str,
)
def test_kernels_that_are_right_pass(shapes):
    result = run(SEQUENTIAL, shapes, HERE)
    assert result.ok, result


@pytest.mark.parametrize("how", SEEN)
def test_broken_kernels_are_seen(how):
    result = run(broken(SEQUENTIAL, how), SMALL, HERE)
    print(result)
    assert failed(result) == SEEN[how]


def in_precision(dtype: torch.dtype) -> Kernels:
    """The reference, that is: another order of sums."""

    def verify(*arguments):
        reference.verify(*arguments, dtype=dtype)

    def commit_class(layers, history):
        return reference.Commit(layers, history, dtype=dtype)

    kernels = SimpleNamespace(verify=verify, plan=reference.plan, Commit=commit_class)
    return Kernels("other", kernels, False, lambda batch, _: batch, gpu_kernel)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_another_order_of_sums_is_within_the_bound(dtype, state):
    result = run(in_precision(dtype), replace(SMALL, T=6, state=state), HERE)
    assert result.ok, result
    assert "error" in str(result)


def test_rounding_to_bf16_on_the_way_is_seen():
    """As operands of a tensor core are, when nothing makes up for it."""
    result = run(in_precision(torch.bfloat16), replace(SMALL, T=6), HERE)
    print(result)
    assert failed(result) == {"outputs", "states"}


@pytest.mark.full
@pytest.mark.parametrize("how", SEEN)
def test_broken_kernels_are_seen_by_the_bound(how):
    """What another order of sums cannot explain, one head's outputs by a hundredth included."""
    right = in_precision(torch.float32)
    result = run(broken(right, how), SMALL, HERE)
    print(result)
    assert failed(result) == SEEN[how] - {"recorded inputs"}


def test_the_bound_follows_vllms_own_error(monkeypatch):
    monkeypatch.setattr(check, "FACTOR", 0.0)
    monkeypatch.setattr(check, "ROUNDINGS", 0.0)
    assert failed(run(in_precision(torch.float32), SMALL, HERE)) == {"outputs", "states"}


def test_a_step_in_the_place_of_another():
    """What a graph that is replayed reads: other rows and other blocks in the same memory."""
    step, other = (make_step(SMALL, HERE, 4, seed) for seed in (0, 50))
    out, run_step = selftest._plain_run(SEQUENTIAL, SMALL, step)
    assert not torch.equal(step.batch.state_blocks, other.batch.state_blocks)
    run_step()
    selftest._narrow(step)
    assert step.batch.starts.diff().tolist() == [1] * 5
    selftest._refill(step, copy_of(other, SMALL))
    run_step()
    parts = selftest._beside_plain_run("", SEQUENTIAL, SMALL, copy_of(other, SMALL), step, out)
    assert all(part.ok for part in parts)
    selftest._refill(step, copy_of(other, SMALL))
    parts = selftest._beside_plain_run("", SEQUENTIAL, SMALL, copy_of(other, SMALL), step, out)
    assert not all(part.ok for part in parts)  # the commit is missing


def test_a_step_over_a_block_boundary_reads_either_block():
    made = [make_step(SMALL, HERE, requests) for requests in (1, 4)]
    assert {bool(m.batch.state_blocks[0] == m.align.tables.tensors[0][0, 0]) for m in made} == {0, 1}


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_chunked_kernels_pass(monkeypatch, state):
    """With few and with many heads, for which their tiles differ."""
    monkeypatch.setattr(check, "MANY_HEADS", 6)
    monkeypatch.setattr(triton_chunked, "FEW_HEADS", 6)
    result = run(CHUNKED, replace(SMALL, T=6, state=state), HERE)
    print(result)
    assert result.ok, result


@pytest.mark.parametrize("how", ["decay dropped", "wrong row committed", "null block written"])
def test_broken_chunked_kernels_are_seen(monkeypatch, how):
    monkeypatch.setattr(check, "MANY_HEADS", 2)
    result = run(broken(CHUNKED, how), SMALL, HERE)
    print(result)
    assert failed(result) == SEEN[how]
