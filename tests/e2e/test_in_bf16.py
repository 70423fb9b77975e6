"""The pairs of the dense target in bf16: acceptance per position is the reference's, eager and compiled,
on V1 and V2; texts are those without a draft up to near-ties, and stock vLLM drafts the same from the
native pair. Exactly, in float32, with negative controls: test_in_float32.py.

vLLM has asynchronous scheduling on GPUs only: its CPU platform switches it off.
"""

from __future__ import annotations

import pytest

from examples.demo.__main__ import has_compiler
from tests.support.dense import NATIVE_AUX_LAYERS, POSTNORM_AUX_LAYERS, STOCK, K, dense
from tests.support.engine import ROOT, has_gpu
from tests.support.hybrid import acceptance, assert_requests_add_up, started, with_log
from tests.support.near_ties import assert_only_near_ties, near_tie_share
from tests.support.replay import assert_same_drafter, compare

pytestmark = [pytest.mark.e2e, pytest.mark.long]

BOUND = 0.02
AUX_LAYERS = {
    "postnorm": POSTNORM_AUX_LAYERS,
    "native": NATIVE_AUX_LAYERS,
    "gated": POSTNORM_AUX_LAYERS,
}


@pytest.fixture
def assert_drafts_as_the_reference(target, prompts, request):
    def check(result, name, *, drafts, bound=BOUND):
        reference = request.getfixturevalue(f"{name}_reference")
        tally = compare(result, target, reference, AUX_LAYERS[name], prompts, K)
        assert_same_drafter(tally, drafts=drafts, bound=bound)
        counted = acceptance(result)
        assert counted == pytest.approx(tally.engine_acceptance, abs=bound)

    return check


@pytest.mark.parametrize(("name", "drafts"), [("postnorm", 2000), ("native", 600), ("gated", 2000)])
def test_acceptance_on_v1(v1, assert_drafts_as_the_reference, name, drafts):
    assert_drafts_as_the_reference(v1[0][name], name, drafts=drafts)


@pytest.mark.v2
@pytest.mark.parametrize("name", ["postnorm", "gated"])
def test_acceptance_on_v2(v2, assert_drafts_as_the_reference, name):
    assert_drafts_as_the_reference(v2[0][name], name, drafts=300, bound=0.05)
    assert_requests_add_up(v2[0][name])


def test_postnorm_is_worth_drafting_for(v1):
    assert 1 + sum(acceptance(v1[0]["postnorm"])) >= 2.4


@pytest.mark.parametrize(
    ("runner", "name", "share"),
    [
        ("v1", "postnorm", 0.1),
        ("v1", "native", 0.1),
        ("v1", "gated", 0.03),
        pytest.param("v2", "postnorm", 0.1, marks=pytest.mark.v2),
    ],
)
def test_greedy_text_is_that_without_a_draft(plain, runner, name, share, request):
    """Up to near-ties between batch shapes; how many there are depends on the CPU."""
    drafted = request.getfixturevalue(runner)[0][name]["tokens"]
    gaps = assert_only_near_ties(plain, drafted, f"{name} on {runner}")
    assert len(gaps) <= near_tie_share(share) * len(drafted)


def assert_same(stock, ours):
    for part in ("tokens", "drafts", "counters"):
        assert stock[part] == ours[part]
    assert ours["counters"]["spec_decode_num_drafts"] > 0


def test_stock_vllm_drafts_the_same_from_the_native_pair(v1, prompts):
    """The package adds nothing to a draft that vLLM serves rightly, and without it nothing is left."""
    stock, log = with_log([dense("native", "native", prompts=prompts[:40])], **STOCK)
    assert "the inputs of target layers" not in log
    assert "EagleExt" not in log
    assert_same(stock["native"], v1[0]["native"])


@pytest.mark.v2
def test_stock_vllm_drafts_the_same_on_v2(prompts):
    few = [dense("native", "native", prompts=prompts[:10], max_tokens=32, concurrency=5)]
    assert_same(started(few, "v2", **STOCK)["native"], started(few, "v2")["native"])


def test_a_run_without_a_draft_hears_nothing_of_the_package(plain, prompts):
    results, log = with_log([dense("plain", prompts=prompts[:30], logprobs=5)])
    assert "eagle" not in log.replace(str(ROOT), "").lower()
    for part in ("tokens", "logprobs"):
        assert results["plain"][part] == plain[part][:30]


@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize("name", ["postnorm", "gated"])
def test_compiled(prompts, assert_drafts_as_the_reference, name):
    """Stale or not yet visible target features are the classic fault of compiled drafting; the gated
    product is fused into its neighbours."""
    run = dense(name, name, prompts=prompts[:60], engine_args={"enforce_eager": False})
    assert_drafts_as_the_reference(started([run])[name], name, drafts=800)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("name", ["postnorm", "gated"])
def test_cuda_graphs(prompts, assert_drafts_as_the_reference, name, runner, mode, overlap):
    graphs = {"async_scheduling": overlap, "compilation_config": {"cudagraph_mode": mode}}
    run = dense(name, name, prompts=prompts[:60], engine_args={"enforce_eager": False, **graphs})
    assert_drafts_as_the_reference(started([run], runner)[name], name, drafts=800)
