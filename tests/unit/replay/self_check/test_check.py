"""The self-check on vLLM's C++ kernels: what is right passes, what is wrong is seen where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support import breakage
from tests.support.broken_kernels import SEEN, broken
from tests.support.engine import has_gpu
from tests.support.group_check import check_groups
from vllm_eagle_ext.replay.self_check.compared import Kernels, run
from vllm_eagle_ext.replay.self_check.step import Shapes, cpu_kernel

if has_gpu():
    pytest.skip("vLLM's CPU kernels", allow_module_level=True)

from vllm_eagle_ext.replay.ops import cpu

CPU = torch.device("cpu")
SEQUENTIAL = Kernels("sequential", cpu, True, cpu.prepare, cpu_kernel)
SMALL = Shapes(H=1, HV=2, DK=64, DV=64, T=5)


def failed(result) -> set[str]:
    assert result.error is None
    return {part.name for part in result.parts if not part.ok}


@pytest.mark.parametrize("T", [2, 3, 4, 8, 16, 17])
def test_kernels_that_are_right_pass(T):
    result = run(SEQUENTIAL, replace(SMALL, T=T), CPU)
    assert result.ok, result
    assert {part.name for part in result.parts} == {
        "plan", "recorded inputs", "outputs", "states", "conv states", "other bytes"
    }  # fmt: skip
    assert "all bits as vLLM's own" in str(result)


@pytest.mark.parametrize(
    "shapes",
    [
        Shapes(H=2, HV=6, DK=128, DV=128, T=16),
        replace(SMALL, state=torch.bfloat16),
        replace(SMALL, dim_first=True),
        replace(SMALL, W=2),
    ],
    ids=str,
)
def test_shapes(shapes):
    result = run(SEQUENTIAL, shapes, CPU)
    assert result.ok, result
    assert str(shapes) in str(result)


def test_cache_groups():
    """The check that `benchmarks.gpu` makes of 48, as far as a CPU can run it."""
    result = check_groups(SEQUENTIAL, SMALL, CPU, 3)
    assert result.ok, result


@pytest.mark.promise("kernels that are wrong on a device are seen when a worker starts")
@pytest.mark.parametrize("how", SEEN)
def test_broken_kernels_are_seen(how):
    result = run(broken(SEQUENTIAL, how), SMALL, CPU)
    print(result)
    assert not result.ok
    assert failed(result) == SEEN[how]
    assert "\n" not in str(result)


@pytest.mark.parametrize("how", [*breakage.BREAKAGES, breakage.NO_BLOCK_END])
def test_what_the_engine_tests_break_is_seen(monkeypatch, how):
    breakage.apply(how, monkeypatch.setattr)
    assert failed(run(SEQUENTIAL, SMALL, CPU))


def test_one_bit_is_seen():
    def verify(rows, gating, cache, batch, out):
        cpu.verify(rows, gating, cache, batch, out)
        out.view(torch.int16)[3, 1, 7] ^= 1

    changed = broken(SEQUENTIAL, "no commit").module
    changed.verify, changed.Commit = verify, cpu.Commit
    (part,) = [
        part for part in run(SEQUENTIAL._replace(module=changed), SMALL, CPU).parts if not part.ok
    ]
    assert (part.name, part.differing) == ("outputs", 1)
    assert part.first.startswith("at [3, 1, 7]: ")
    assert 0 < part.max_rel < 0.01


def test_a_kernel_that_raises_is_a_result():
    def verify(*_):
        raise RuntimeError("no such\ninstruction")

    changed = broken(SEQUENTIAL, "no commit").module
    changed.verify = verify
    result = run(SEQUENTIAL._replace(module=changed), SMALL, CPU)
    assert not result.ok
    assert str(result).endswith("failed with RuntimeError: no such, in verify")
    assert not result.device_lost


def test_the_run_keeps_its_random_state_and_its_defaults():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.bfloat16)  # as it is where vLLM builds a model
    try:
        with torch.device("meta"):
            result = run(SEQUENTIAL, SMALL, CPU)
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.ok, result
    assert torch.equal(torch.get_rng_state(), before)
