"""Graphs and scheduling change no draft: acceptance per position is that of the eager V1 engine.

vLLM has asynchronous scheduling on GPUs only: its CPU platform switches it off.
"""

from __future__ import annotations

import pytest

from examples.demo.__main__ import has_compiler
from tests.support.dense import FLOAT32, dense
from tests.support.engine import has_gpu
from tests.support.hybrid import acceptance, started

pytestmark = [pytest.mark.e2e, pytest.mark.full]

BOUND = 0.02


def assert_same_acceptance(prompts, eager, runner="v1", **engine_args):
    run = dense("run", "postnorm", prompts=prompts, engine_args={"enforce_eager": False, **engine_args})
    left, right = acceptance(started([run], runner)["run"]), acceptance(eager[0]["postnorm"])
    print(f"\n{left}\n{right}")
    assert max(abs(a - b) for a, b in zip(left, right, strict=True)) <= BOUND


@pytest.mark.long
@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_equals_eager(v1, prompts):
    """Stale or not yet visible target features are the classic fault of compiled drafting."""
    assert_same_acceptance(prompts, v1)


def test_transformers_class_of_a_target_feeds_the_same_drafts(prompts):
    """What `target_hands_out_its_states` advises: vLLM's class for transformers' models."""
    common = {"prompts": prompts[:6]}
    other = dense("other", "postnorm", engine_args=FLOAT32 | {"model_impl": "transformers"}, **common)
    results = started([dense("own", "postnorm", engine_args=FLOAT32, **common), other])
    assert results["own"]["tokens"] == results["other"]["tokens"]
    assert results["own"]["counters"] == results["other"]["counters"]
    assert results["own"]["counters"]["spec_decode_num_accepted_tokens"] > 200


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not has_gpu(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_cuda_graphs_equal_eager(v1, prompts, runner, mode, overlap):
    arguments = {"async_scheduling": overlap, "compilation_config": {"cudagraph_mode": mode}}
    assert_same_acceptance(prompts, v1, runner, **arguments)
