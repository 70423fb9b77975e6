"""Two ranks, as processes of one machine and as workers of vLLM's Ray executor, draft what one does.

Ray's workers are fresh processes that inherit nothing from the driver: what they know of our drafters
they found through the entry point, and what was decided came with the engine's config.
"""

from __future__ import annotations

from typing import Any

import pytest

import vllm_eagle_ext
from tests.support.batches import Batch, Engine, differing, eagle3, run_engines
from tests.support.engine import TINY, engine_environment
from tests.support.hybrid import TARGET, HybridRun, run_all
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps
from tests.support.placed_drafts import share_equal
from tests.support.ray_cluster import RayCluster, ray_path

pytestmark = [pytest.mark.e2e, pytest.mark.long]

K, BLOCK_K = 4, 7
EQUAL_IDS = 0.95  # bf16: .988 of 1,715 were; each rank sums its half of every row
RANKS = {
    "one": {},
    "mp": {"tensor_parallel_size": 2},
    "ray": {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
}
OPTIONS = {"gate_layout": "interleaved"}
AUX_LAYERS = {"gated": [2, 4, 6, 8, 10], "dflash": [1, 3, 5, 7]}
DRAFTERS = {
    "gated": "Eagle3EagleExtLlamaForCausalLM",
    "dflash": "DFlashEagleExtQwen3ForCausalLM",
}


def run_of(draft: str, ranks: str, prompts: list[list[int]]) -> HybridRun:
    common: dict[str, Any] = {"prompts": prompts, "max_tokens": 40, "record": True}
    speculative = {"model": str(TINY / draft), "num_speculative_tokens": K, "method": "eagle3"}
    if draft == "dflash":
        speculative |= {"method": "dflash", "num_speculative_tokens": BLOCK_K}
        engine_args, target = RANKS[ranks], TARGET
        common |= {"state": "replay", "logprobs": 5}
    else:
        engine_args, target = RANKS[ranks] | {"dtype": "float32"}, TINY / "target"
        common["prompts"] = prompts[:8]
        engine_args |= {"additional_config": {"eagle_ext": OPTIONS}}
    return HybridRun(
        f"{draft} {ranks}", speculative=speculative, engine_args=engine_args, target=target, **common
    )


def run_with_ray(runs: list[HybridRun], **variables: str) -> dict[str, Any]:
    environment = ray_path(engine_environment("v1"))
    with RayCluster(environment) as cluster:
        served, _ = run_all(
            runs,
            **cluster.environment,
            **variables,
            PYTHONPATH=environment["PYTHONPATH"],
            VLLM_CPU_OMP_THREADS_BIND="0|1",
        )
    for name, result in served.items():
        assert "error" not in result, f"{name}: {result['trace'][-3000:]}"
    return served


@pytest.fixture(scope="module")
def some(prompts):
    return [prompt[:64] for prompt in prompts[:16]]


@pytest.fixture(scope="module")
def results(some):
    return run_with_ray([run_of(draft, name, some) for draft in DRAFTERS for name in RANKS])


@pytest.mark.parametrize("ranks", ["mp", "ray"])
def test_two_ranks_draft_what_one_does(results, ranks):
    one, two = results["gated one"], results[f"gated {ranks}"]
    assert sum(map(len, one["drafts"])) > 80
    assert_same(one, two)  # float32: no near-ties


@pytest.mark.v2
def test_two_ranks_on_v2(prompts):
    """Two short texts: Triton's interpreter is slow."""
    texts = [Batch("texts", [prompt[:24] for prompt in prompts[:2]], max_tokens=12)]
    engines = [
        Engine(name, texts, eagle3("postnorm", K), RANKS[name] | {"dtype": "float32"})
        for name in ("one", "mp")
    ]
    served = run_engines(engines, "v2", VLLM_CPU_OMP_THREADS_BIND="0|1")
    one, two = (served[name]["texts"] for name in ("one", "mp"))
    assert two["tokens"] == one["tokens"]
    assert two["counters"] == one["counters"]
    assert differing(one, two, at_least=8) == 0


def assert_same(one, two):
    assert two["drafts"] == one["drafts"]
    assert two["tokens"] == one["tokens"]
    assert two["counters"] == one["counters"]


def test_replay_on_two_ranks_diverges_from_one_at_near_ties_only(results):
    one, two = results["dflash one"], results["dflash ray"]
    gaps = near_tie_gaps(one["tokens"], one["logprobs"], two["tokens"])
    share, count = share_equal(one, two)
    print(f"\n{len(gaps)} of 16 texts diverge, gaps {sorted(gaps)}; {share:.4f} of {count} ids equal")
    assert max(gaps, default=0.0) <= NEAR_TIE_GAP
    assert share >= EQUAL_IDS


@pytest.mark.parametrize("draft", DRAFTERS)
def test_registration_options_and_preflight_reach_every_ray_worker(results, draft):
    workers, driver = results[f"{draft} ray"]["workers"], results[f"{draft} one"]["workers"][0]
    assert len({worker["pid"] for worker in [*workers, driver]}) == 3
    options = {"hybrid_state": "replay"} if draft == "dflash" else OPTIONS
    for worker in workers:
        assert worker["ray"]
        assert not driver["ray"]
        assert worker["drafter"] == DRAFTERS[draft]
        assert worker["layer_ids"] == AUX_LAYERS[draft]
        assert worker["options"] == options
        assert worker["marker"] == worker["version"] == vllm_eagle_ext.__version__
        if draft == "dflash":
            assert worker["replays"] == "vllm_eagle_ext.replay.targets"


def test_replay_on_two_ranks_is_the_same_under_ray(results):
    assert_same(results["dflash mp"], results["dflash ray"])


def test_the_executor_with_compiled_graphs_drafts_the_same(some):
    """vLLM's older Ray executor."""
    runs = [run_of("gated", ranks, some) for ranks in ("one", "ray")]
    served = run_with_ray(runs, VLLM_USE_RAY_V2_EXECUTOR_BACKEND="0")
    one, two = served["gated one"], served["gated ray"]
    assert two["drafts"] == one["drafts"]
    assert two["tokens"] == one["tokens"]
