"""Replay against one state block per draft token, V1 runner: same tokens and counters, fewer blocks.

Drafts are an oracle's, so that each accept length occurs; the target is trained, so that greedy choices
are choices. Where stock vLLM cannot run (ragged rows crash its CPU kernels), texts are compared with
those without drafts, up to near-ties.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tests.support.batches import section
from tests.support.breakage import BREAKAGES
from tests.support.hybrid import (
    HybridRun,
    eagle3_made_to_fit,
    ngram,
    per_position,
    run_all,
    started,
)
from tests.support.near_ties import NEAR_TIE_GAP, assert_only_near_ties, near_tie_gaps

pytestmark = [pytest.mark.e2e, pytest.mark.full]

K, MANY, BLOCK = 7, 15, 256
MAX_TOKENS = 80
HALF = {"mamba_ssm_cache_dtype": "bfloat16"}
SMALL = {"num_gpu_blocks_override": 45}  # for 64 requests of mixed length: preemptions


@pytest.fixture(scope="module")
def mixed(prompts, long_prompt):
    """64 prompts: around 1 + K, around block boundaries, such as cross one, and short ones."""
    choose = random.Random(0)
    lengths = [1 + K, K, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 20, 2 * BLOCK]
    lengths += [BLOCK - choose.randint(10, 40) for _ in range(9)]
    cut = [prompts[i][:6] + long_prompt[: length - 6] for i, length in enumerate(lengths)]
    return cut + [prompts[i][: choose.randint(7, 60)] for i in range(len(cut), 64)]


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory) -> dict[str, Any]:
    return eagle3_made_to_fit(tmp_path_factory.mktemp("drafts"), 4)


@pytest.fixture(scope="module")
def v1(prompts, mixed, eagle3):
    first = [prompt[:64] for prompt in prompts[:48]]
    some = {"prompts": first, "max_tokens": MAX_TOKENS}
    few = {"prompts": first[:16], "max_tokens": 48}
    odd = {"prompts": mixed, "max_tokens": 48}
    oracle = {"speculative": ngram(K)}
    both = [
        ("random", some | oracle | {"follow": "plain"}),
        ("many", few | {"speculative": ngram(MANY), "follow": "plain few"}),
        ("few", few | oracle | {"follow": "plain few"}),
        ("bf16", few | oracle | {"follow": "plain few", "engine_args": HALF}),
        ("eagle3", few | {"speculative": eagle3}),
    ]
    runs = [
        HybridRun("plain", logprobs=5, **some),
        HybridRun("plain few", logprobs=5, **few),
        HybridRun("plain odd", logprobs=5, **odd),
        *(
            HybridRun(f"{name} {s}", state=s, **run)
            for name, run in both
            for s in ("per_token", "replay")
        ),
        *(
            HybridRun(how, state="replay", broken=how, follow="plain few", **few, **oracle)
            for how in BREAKAGES
        ),
        *(
            HybridRun(f"{s} refused", state=s, broken_at_start=BREAKAGES[2], follow="plain few",
                **few, **oracle)
            for s in ("auto", "replay")
        ),
        HybridRun("ragged", state="replay", follow="plain odd", right="ragged", **odd, **oracle),
        HybridRun(
            "pressure", state="replay", follow="plain odd", right="ragged", engine_args=SMALL,
            **odd, **oracle,
        ),
        *(
            HybridRun(
                f"aborts {s}", state=s, follow="plain few", abort_after={"1": 2, "4": 3, "9": 4},
                **few, **oracle,
            )
            for s in ("per_token", "replay")
        ),
    ]  # fmt: skip
    results, log = run_all(runs)
    for name, result in results.items():
        expected = name == "replay refused"
        assert ("error" in result) == expected, f"{name}: {result.get('trace', '')[-3000:]}"
    return results, log


@pytest.mark.parametrize("name", ["random", "many", "few", "bf16", "eagle3"])
def test_replay_equals_one_state_block_per_token(v1, name):
    per_token, replay = (v1[0][f"{name} {state}"] for state in ("per_token", "replay"))
    assert replay["tokens"] == per_token["tokens"]
    assert replay["counters"] == per_token["counters"]
    dtypes = {run["state_blocks"]["groups"][0]["dtypes"][1] for run in (per_token, replay)}
    assert dtypes == {"torch.bfloat16" if name == "bf16" else "torch.float32"}


def test_every_accept_length_occurs(v1):
    """Over 3,000 tokens and more."""
    result = v1[0]["random replay"]
    drafts, reached = result["counters"]["spec_decode_num_drafts"], per_position(result)
    histogram = [a - b for a, b in zip([drafts, *reached], [*reached, 0], strict=True)]
    tokens = sum(map(len, result["tokens"]))
    print(f"\n{tokens} tokens, {drafts} drafts; drafts by accepted tokens 0 to {K}: {histogram}")
    assert tokens >= 3000
    assert min(histogram) > 0


@pytest.mark.parametrize("how", BREAKAGES)
def test_a_broken_replay_is_seen(v1, how):
    """By comparison with the per-token scheme. It may well raise acceptance, which proves nothing."""
    right, broken = v1[0]["few per_token"], v1[0][how]
    changed = sum(a != b for a, b in zip(right["tokens"], broken["tokens"], strict=True))
    accepted = [run["counters"]["spec_decode_num_accepted_tokens"] for run in (right, broken)]
    print(f"\n{how}: {changed} of {len(right['tokens'])} texts differ; accepted {accepted}")
    assert changed > len(right["tokens"]) / 2


def test_kernels_that_fail_at_start_are_not_served_with(v1):
    """Left to choose, the engine keeps vLLM's scheme in all respects, and says so with figures."""
    results, log = v1
    per_token, left = results["few per_token"], results["auto refused"]
    assert left["tokens"] == per_token["tokens"]
    assert left["counters"] == per_token["counters"]
    assert left["state_blocks"] == per_token["state_blocks"]
    said = " ".join(section(log, "auto refused").split())
    assert "Self-check of replay FAILED: sequential kernels, 2/4 heads of 64/64, 8 rows" in said
    assert "values differ, by up to" in said
    assert "vLLM's own scheme per_token runs instead" in said
    assert "Self-check of replay: sequential kernels" in section(log, "few replay")


def test_an_explicit_choice_is_refused_with_the_figures(v1):
    error = v1[0]["replay refused"]["error"]
    print(f"\n{error}")
    assert error.startswith("HybridStateError: ")
    assert "values differ, by up to" in error


@pytest.mark.parametrize("name", ["ragged", "pressure"])
def test_texts_are_those_without_drafts(v1, name):
    """Rows of any length, steps without drafts, prompts up to block boundaries, 64 at a time."""
    plain, drafted = v1[0]["plain odd"], v1[0][name]
    assert_only_near_ties(plain, drafted["tokens"], name)
    assert drafted["counters"]["spec_decode_num_drafts"] > 0


def test_requests_are_preempted_under_pressure(v1):
    preempted = v1[0]["pressure"]["counters"]["num_preemptions"]
    print(f"\n{preempted} preemptions")
    assert preempted > 0
    assert v1[0]["ragged"]["counters"]["num_preemptions"] == 0


def test_aborted_requests_leave_nothing_behind(v1):
    result, plain = v1[0]["aborts replay"], v1[0]["plain few"]
    finished = {int(number): text for number, text in result["finished"].items()}
    assert set(finished) == set(range(16)) - {1, 4, 9}
    gaps = near_tie_gaps(
        [plain["tokens"][n] for n in finished], [plain["logprobs"][n] for n in finished],
        list(finished.values()),
    )  # fmt: skip
    assert max(gaps, default=0) <= NEAR_TIE_GAP
    assert result["blocks_taken"] == 1  # vLLM's null block


def test_state_blocks_that_a_running_request_holds(v1):
    """Counted in the scheduler's block tables at every step: one, and a CPU's scratch block."""
    held = [v1[0][f"aborts {state}"]["state_blocks_held"] for state in ("per_token", "replay")]
    assert held == [1 + K, 2]


def test_state_blocks_and_requests_that_fit(v1):
    """Its state blocks, and the engine's own count of requests beside that of the start line."""
    results, log = v1
    for k, name in ((K, "random"), (MANY, "many")):
        per_token, replay = (
            results[f"{name} {state}"]["state_blocks"] for state in ("per_token", "replay")
        )
        assert {group["blocks_per_request"] for group in per_token["groups"]} == {1 + k}
        assert {group["blocks_per_request"] for group in replay["groups"]} == {2}
        assert [len(group["shapes"]) for group in replay["groups"]] == [3] * len(replay["groups"])
        counted = [pages["requests_fit"] for pages in (replay, per_token)]
        said = re.search(
            r"(\d+) requests of 1024 tokens fit instead of (\d+)", section(log, f"{name} replay")
        )
        assert said
        print(f"\nK={k}: engine {counted}, start line {said.groups()}")
        for mine, engine in zip(said.groups(), counted, strict=True):
            assert abs(int(mine) / engine - 1) < 0.02
    assert counted[0] / counted[1] >= 4


def test_replay_equals_one_state_block_per_token_on_two_ranks(prompts):
    """Each rank has half of the heads, of the states and of the recorded inputs."""
    common = {"prompts": [prompt[:64] for prompt in prompts[:8]], "max_tokens": 48}
    two = {"speculative": ngram(K), "engine_args": {"tensor_parallel_size": 2}, "follow": "plain"}
    runs = [
        HybridRun("plain", **common),
        *(HybridRun(state, state=state, **common, **two) for state in ("per_token", "replay")),
    ]
    results = started(runs, VLLM_CPU_OMP_THREADS_BIND="0|1")
    per_token, replay = results["per_token"], results["replay"]
    assert replay["tokens"] == per_token["tokens"]
    assert replay["counters"] == per_token["counters"]
    accepted = replay["counters"]["spec_decode_num_accepted_tokens_per_pos"]
    assert min(accepted) > 0
    shapes = replay["state_blocks"]["groups"][0]["shapes"]
    assert shapes[1] == [2, 64, 64]
    assert shapes[2] == [K + 1, 1 * 64 + 2 * 64 + 2 * 2]


@pytest.mark.long
def test_compiled_engines_agree(prompts):
    common = {"prompts": [prompt[:64] for prompt in prompts[:8]], "max_tokens": 48}
    compiled = {"speculative": ngram(K), "engine_args": {"enforce_eager": False}, "follow": "plain"}
    runs = [
        HybridRun("plain", **common),
        *(HybridRun(state, state=state, **common, **compiled) for state in ("per_token", "replay")),
    ]
    results = started(runs)
    assert results["replay"]["tokens"] == results["per_token"]["tokens"]
    assert results["replay"]["counters"] == results["per_token"]["counters"]
