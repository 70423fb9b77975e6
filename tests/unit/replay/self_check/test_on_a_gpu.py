"""What only a device can show: graphs, streams, real widths, and how long the check takes."""

from __future__ import annotations

import time

import pytest
import torch

from tests.support.broken_kernels import SEEN, broken
from tests.support.group_check import check_groups
from vllm_eagle_ext.measure.selftest import run as selftest
from vllm_eagle_ext.measure.selftest.run import FEW, cases
from vllm_eagle_ext.replay.self_check.compared import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(params=["chunked", "sequential"])
def kernels(request):
    from vllm_eagle_ext.replay.self_check.at_start import candidates

    return next(each for each in candidates() if each.name == request.param)


@pytest.mark.parametrize("case", cases(quick=True), ids=str)
def test_published_shapes(kernels, case):
    result = run(kernels, case.shapes, torch.device("cuda"))
    print(result)
    assert result.ok, result


@pytest.mark.parametrize("how", SEEN)
def test_broken_kernels_are_seen(kernels, how):
    result = run(broken(kernels, how), FEW, torch.device("cuda"))
    assert result.error is None
    seen = {part.name for part in result.parts if not part.ok}
    assert seen == (SEEN[how] if kernels.exact else SEEN[how] - {"recorded inputs"})


@pytest.mark.parametrize("check", [selftest.check_in_a_graph, check_groups])
def test_surroundings(kernels, check):
    result = check(kernels, FEW, torch.device("cuda"))
    assert result.ok, result


def test_a_start_waits_less_than_a_second(kernels):
    """Once the kernels are compiled; and leaves no memory and the run's random numbers alone."""
    case, *_ = cases(quick=True)
    run(kernels, case.shapes, torch.device("cuda"))
    torch.cuda.synchronize()
    taken, state = torch.cuda.memory_allocated(), torch.cuda.get_rng_state()
    started = time.perf_counter()
    assert run(kernels, case.shapes, torch.device("cuda")).ok
    assert time.perf_counter() - started < 1
    assert torch.cuda.memory_allocated() == taken
    assert torch.equal(torch.cuda.get_rng_state(), state)
