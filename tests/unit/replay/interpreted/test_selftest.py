"""The steps that `selftest` times on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.unit.replay.cases import DEVICE
from vllm_eagle_ext.measure.selftest import timing
from vllm_eagle_ext.replay.ops import triton, triton_chunked
from vllm_eagle_ext.replay.self_check.compared import Kernels
from vllm_eagle_ext.replay.self_check.step import Shapes, gpu_kernel

KERNELS = {
    "sequential": Kernels("sequential", triton, True, lambda batch, _: batch, gpu_kernel),
    "chunked": Kernels("chunked", triton_chunked, False, lambda batch, _: batch, gpu_kernel),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_steps_that_are_timed(name):
    """Both schemes keep the same states: replay after a commit, the other one behind each row."""
    k, batch, accepted = 3, 2, 2
    shapes = Shapes(H=1, HV=1, DK=128, DV=128, T=1 + k)
    scheme = timing.BothSchemes(shapes, batch, DEVICE, layers=1)
    with torch.inference_mode():
        scheme.replay(KERNELS[name], accepted)()
        scheme.per_token(KERNELS[name], accepted)()
    for cache, states in zip(scheme.layers, scheme.per_token_states, strict=True):
        mine = cache.state[scheme.replay_batch.state_blocks.long()]
        theirs = states[scheme.table[:, accepted - 1].long()]
        assert mine.abs().max() > 0.1
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
