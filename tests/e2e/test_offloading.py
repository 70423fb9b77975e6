"""vLLM's offloading of KV-cache blocks to the host, with states kept by replay: a state block that a
commit wrote, copied out, dropped and copied in again goes on as one that never left, where the cache has
room. A start refuses it, for what vLLM's V2 runner does where it has none (docs/hybrid.md).

The V2 runner under the interpreter; vLLM's own connector, with a worker that copies on a CPU.
"""

from __future__ import annotations

import pytest

from tests.support.breakage import LET_THROUGH, NO_STATE_LOADED, SAVES_FIRST, SAVES_WATCHED
from tests.support.host_offloading import offloading
from tests.support.hybrid import HybridRun, dflash, ngram, started
from tests.support.near_ties import NEAR_TIE_GAP
from tests.support.turns import (
    BLOCK,
    CACHED,
    GENERATED_BLOCK_END,
    largest_difference,
    two_turns,
)

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

K = 7
OFFLOADED = CACHED | {"kv_transfer_config": offloading(1.0, offload_prompt_only=False)}
AWAY = {
    "engine_args": OFFLOADED,
    "forget": True,
    "state": "replay",
    "broken_at_start": LET_THROUGH,
}
# Four requests do not fit once they pass a block boundary.
CROWDED = {
    "engine_args": OFFLOADED | {"num_gpu_blocks_override": 14, "max_model_len": 3 * BLOCK},
    "broken_at_start": LET_THROUGH,
}
HITS = ("prefix_cache_hits", "external_prefix_cache_hits")


@pytest.fixture(scope="module")
def turns(prompts):
    return two_turns(prompts)


@pytest.fixture(scope="module")
def v2(turns):
    """Oracle drafts follow what the first engine said, which has nothing to follow."""
    kept = {"engine_args": CACHED, "state": "replay"}
    drafted = turns | {"speculative": dflash(K)}
    oracle = turns | {"speculative": ngram(K), "follow": "dflash kept"}
    runs = [
        HybridRun("dflash kept", **kept, **drafted),
        HybridRun("dflash offloaded", **AWAY, **drafted),
        HybridRun("oracle kept", **kept, **oracle),
        HybridRun("oracle offloaded", **AWAY, **oracle),
        HybridRun(NO_STATE_LOADED, broken=NO_STATE_LOADED, **AWAY, **drafted),
    ]
    return started(runs, "v2")


@pytest.mark.parametrize("drafts", ["dflash", "oracle"])
def test_blocks_that_were_away_go_on_as_those_that_stayed(v2, drafts):
    kept, away = (v2[f"{drafts} {where}"] for where in ("kept", "offloaded"))
    print(f"\nhits {[{name: run['counters'][name] for name in HITS} for run in (kept, away)]}")
    for part in ("tokens", "logprobs", "second_turn", "second_logprobs", "second_cached"):
        assert away[part] == kept[part], part
    reached = "spec_decode_num_accepted_tokens_per_pos"
    assert away["counters"][reached] == kept["counters"][reached]
    assert away["counters"]["spec_decode_num_accepted_tokens"] > 100


def test_every_second_turn_reads_the_host(v2):
    """States behind generated text included, which commits wrote."""
    away = v2["dflash offloaded"]
    first, both = ([away[part][name] for name in HITS] for part in ("first_counters", "counters"))
    on_device, from_host = (now - before for before, now in zip(first, both, strict=True))
    assert first[1] == 0
    assert on_device == 2 * BLOCK  # the last two requests are one text
    assert from_host == sum(away["second_cached"]) - on_device
    for request, block_end in GENERATED_BLOCK_END.items():
        assert block_end <= away["second_cached"][request]


def test_states_are_kept_by_replay(v2):
    groups = v2["dflash offloaded"]["state_blocks"]["groups"]
    assert any(len(group["dtypes"]) > 2 for group in groups)  # recorded inputs


def test_a_state_that_is_not_copied_in_is_seen(v2):
    right, broken = v2["dflash offloaded"], v2[NO_STATE_LOADED]
    assert broken["tokens"] == right["tokens"]
    assert broken["second_cached"] == right["second_cached"]
    pairs = zip(right["second_logprobs"], broken["second_logprobs"], strict=True)
    gaps = [largest_difference(*pair) for pair in pairs]
    print(f"\nlog-probabilities of second turns differ by up to {gaps}")
    assert min(gaps) > 0
    assert max(gaps) > NEAR_TIE_GAP


@pytest.fixture(scope="module")
def full(prompts):
    """Requests are preempted while a block of theirs waits to be saved."""
    flat = [token for prompt in prompts for token in prompt]
    # Without drafts all reach the end of the block in one step, behind which the last is preempted.
    lengths = {"drafted": [236, 238, 240, 242], "plain": [236] * 4}
    texts = {
        name: [flat[600 * i : 600 * i + length] for i, length in enumerate(each)]
        for name, each in lengths.items()
    }
    run = CROWDED | {"max_tokens": 40, "then": prompts[50][:4], "logprobs": 5}
    replay = run | {"prompts": texts["drafted"], "speculative": dflash(K), "state": "replay"}
    runs = [
        HybridRun("replay", broken=SAVES_WATCHED, **replay),
        HybridRun("no draft", broken=SAVES_WATCHED, prompts=texts["plain"], **run),
        HybridRun("replay, V1's order", broken=SAVES_FIRST, **replay),
    ]
    return started(runs, "v2")


@pytest.mark.parametrize("name", ["replay", "no draft"])
def test_v2_saves_blocks_that_it_has_cleared(full, name):
    """docs/dev/vllm_faults/v2_saved_after_zeroing.py"""
    saves, preemptions = full[name]["saves"], full[name]["counters"]["num_preemptions"]
    print(f"\n{name}: {preemptions} preemptions, blocks saved {saves}")
    assert preemptions > 0
    assert 0 < saves["cleared"] <= saves["overwritten"] < saves["all"]


def test_saved_before_anything_else_no_block_is(full):
    """The same steps, but for the order in which V1 does it."""
    in_order, faulty = full["replay, V1's order"], full["replay"]
    print(f"\n{in_order['counters']['num_preemptions']} preemptions, blocks saved {in_order['saves']}")
    assert in_order["counters"]["num_preemptions"] == faulty["counters"]["num_preemptions"]
    assert in_order["saves"] == {"all": faulty["saves"]["all"], "overwritten": 0, "cleared": 0}
    assert in_order["tokens"] == faulty["tokens"]
    pairs = zip(in_order["second_logprobs"], faulty["second_logprobs"], strict=True)
    assert max(largest_difference(*pair) for pair in pairs) > 0  # what was saved is read
