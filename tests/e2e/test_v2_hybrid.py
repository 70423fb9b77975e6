"""A DFlash draft on a hybrid target and the V2 runner, under Triton's interpreter: see test_v2.py."""

from __future__ import annotations

import pytest

from tests.support.batches import section
from tests.support.hybrid import DFLASH_AUX_LAYERS, HybridRun, dflash, with_log
from tests.support.near_ties import assert_only_near_ties
from tests.support.replay import compare

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

K = 3
TOKENS = 12
EQUAL_IDS = 0.95  # in bfloat16, of a few drafts


def short(prompts: list[list[int]]) -> list[list[int]]:
    return [prompt[:24] for prompt in prompts[:6]]


@pytest.fixture(scope="module")
def hybrid_on_v2(prompts):
    few = {"prompts": short(prompts), "max_tokens": TOKENS, "logprobs": 5}
    runs = [
        HybridRun("per_token", state="per_token", speculative=dflash(K), **few),
        HybridRun("replay", speculative=dflash(K), record=True, **few),  # chosen by itself
    ]
    return with_log([HybridRun("plain", **few), *runs], "v2")


def test_replay_is_one_state_block_per_token(hybrid_on_v2):
    replay, per_token = (hybrid_on_v2[0][state] for state in ("replay", "per_token"))
    assert replay["tokens"] == per_token["tokens"]
    assert replay["counters"] == per_token["counters"]
    assert replay["counters"]["spec_decode_num_accepted_tokens"] > 0
    kept, others = (
        run["state_blocks"]["groups"][0]["blocks_per_request"] for run in (replay, per_token)
    )
    assert (kept, others) == (2, 1 + K)


def test_drafts_are_those_of_the_reference(hybrid_on_v2, hybrid_target, dflash_walk, prompts):
    result = hybrid_on_v2[0]["replay"]
    texts = short(prompts)
    tally = compare(result, hybrid_target, dflash_walk, DFLASH_AUX_LAYERS, texts, K, chained=False)
    assert tally.drafts >= 20
    assert min(tally.equal_share) >= EQUAL_IDS


def test_replay_changes_no_text(hybrid_on_v2):
    results, _ = hybrid_on_v2
    assert_only_near_ties(results["plain"], results["replay"]["tokens"], "replay on V2")


def test_replay_is_chosen_by_itself(hybrid_on_v2):
    said = " ".join(section(hybrid_on_v2[1], "replay").split())
    assert "Recurrent state of Qwen3_5ForCausalLM: replay, 2 state blocks" in said
