"""What a server's schedule does to drafts: nothing. V1 runner, float32, against near-ties.

A draft is a function of the text before it: small chunks, KV-cache blocks, other requests, preemptions,
hits in the prefix cache and the end of max_model_len change the steps, not what is drafted at a length.
"""

from __future__ import annotations

import pytest

from tests.support.batches import Batch, Engine, differing, eagle3, run_engines
from tests.support.releases import is_release
from tests.support.schedules import (
    BLOCK,
    CHUNK,
    LENGTH,
    PER_POSITION,
    PLAIN,
    assert_drafts_follow_the_schedule,
    cut,
    drafts_by_width,
    following,
    phases,
)

pytestmark = [pytest.mark.e2e, pytest.mark.full]

K = 4
TURN = 40  # tokens: more than a cache block, so that a second turn finds blocks in generated text
LENGTHS = (
    1,
    1 + K,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    2 * BLOCK,
    3 * BLOCK - 1,
    110,
)
TO_THE_END = (120, 64, 100, 155, 159)
CROWD = (40, 60, 70, 50, 33)
ROOMY = PLAIN | {"enable_prefix_caching": True}
# Seven cache blocks (an eighth is vLLM's null block) for three requests of up to five.
NARROW = PLAIN | {"max_num_batched_tokens": CHUNK, "max_num_seqs": 3, "num_gpu_blocks_override": 8}
# Requests that join while others run, and vLLM's own key.
JOINS, WAVES, OF_WAVES = [0, 0, 6, 8, 10, 12, 40, 41], (40, 33, 60, 20, 50, 30, 25, 45), 60
SCHEDULE = [[1, 2, K], [3, 3, 2], [4, 4, 1], [5, 8, 0]]
# An EAGLE row at the end of a block depends on the token behind it. 0.32 computes the last block of
# a hit anew, from 0.33 on a block's hash covers that token.
BLOCKS_ANEW = 1 if is_release("0.32") else 0


def batches(prompts: list[list[int]]) -> list[Batch]:
    texts, long = cut(prompts, LENGTHS), cut(prompts, TO_THE_END)
    return [
        Batch("solo", texts, concurrency=1, max_tokens=TURN, cold=True),
        Batch("together", texts, max_tokens=TURN, cold=True),
        Batch("end", long, max_tokens=None, cold=True),
        Batch("crowd", cut(prompts, CROWD), max_tokens=80, cold=True),
    ]


def cached_batches(prompts: list[list[int]]) -> list[Batch]:
    texts, long, then = cut(prompts, LENGTHS), cut(prompts, TO_THE_END), prompts[50][:3]
    return [
        *batches(prompts),
        Batch("end, solo", long, concurrency=1, max_tokens=None, cold=True),
        Batch("filling", texts, concurrency=1, max_tokens=TURN, cold=True),
        Batch("again", texts, concurrency=1, max_tokens=TURN),
        Batch("turn", follows="filling", then=then, concurrency=1, max_tokens=None),
        Batch("turn, cold", follows="filling", then=then, concurrency=1, max_tokens=None, cold=True),
    ]


@pytest.fixture(scope="module", params=["postnorm", pytest.param("gated", marks=pytest.mark.long)])
def engines(request, prompts):
    speculative, common = eagle3(request.param, K), batches(prompts)
    waves = [Batch("waves", cut(prompts, WAVES), max_tokens=OF_WAVES, joins=JOINS, cold=True)]
    stock = {"enabled": False}  # first: nothing of this package is in the process yet
    wanted = [
        Engine("stock", common, speculative, engine_args=NARROW, options=stock),
        Engine("plain", common + waves, engine_args=PLAIN),
        Engine("schedule", waves, following(speculative, SCHEDULE), engine_args=PLAIN),
        Engine("roomy", cached_batches(prompts) + waves, speculative, engine_args=ROOMY),
        Engine("narrow", common, speculative, engine_args=NARROW),
    ]
    return run_engines(wanted)


def padded(result) -> int:
    """Count the prompts of which a hit leaves one token: vLLM schedules K placeholders behind it, for
    the shape of a decoding step, and counts them as a draft of which nothing is accepted."""
    left = zip(result["prompts"], result["cached"], strict=True)
    return sum(0 < cached == len(prompt) - 1 for prompt, cached in left)


@pytest.mark.parametrize("batch", ["solo", "together", "end", "crowd"])
@pytest.mark.parametrize("engine", ["roomy", "narrow"])
def test_texts_are_those_without_a_draft(engines, engine, batch):
    assert engines[engine][batch]["tokens"] == engines["plain"][batch]["tokens"]


class TestChunks:
    def test_they_change_no_draft_and_no_acceptance(self, engines):
        whole, chunked = (engines[engine]["solo"] for engine in ("roomy", "narrow"))
        more = [a - b for a, b in zip(chunked["rows"], whole["rows"], strict=True)]
        assert more == [(length - 1) // CHUNK for length in LENGTHS]  # a prompt's chunks, less one
        assert differing(chunked, whole, at_least=120) == 0
        assert chunked["counters"][PER_POSITION] == whole["counters"][PER_POSITION]

    @pytest.mark.parametrize("engine", ["roomy", "narrow"])
    def test_nor_do_other_requests(self, engines, engine):
        together = engines[engine]["together"]
        assert differing(together, engines["roomy"]["solo"], at_least=100) == 0


class TestTheEndOfTheContext:
    def test_requests_fill_it(self, engines):
        for engine in ("roomy", "narrow"):
            result = engines[engine]["end"]
            texts = zip(result["prompts"], result["tokens"], strict=True)
            assert {len(prompt) + len(own) for prompt, own in texts} == {LENGTH}
            assert set(result["finish"]) == {"length"}

    def test_the_drafts_of_requests_beside_one_at_its_end_stay(self, engines):
        alone = engines["roomy"]["end, solo"]
        beside = engines["roomy"]["end"]
        assert differing(beside, alone, at_least=40) == 0
        assert beside["counters"] | {"prefix_cache_queries": 0} == alone["counters"] | {
            "prefix_cache_queries": 0
        }
        narrow = engines["narrow"]["end"]
        assert differing(narrow, alone, at_least=30) == 0


def test_a_preempted_request_goes_on_with_the_same_drafts(engines):
    roomy, narrow = (engines[engine]["crowd"] for engine in ("roomy", "narrow"))
    preempted = narrow["counters"]["num_preemptions"]
    print(f"\n{preempted} preemptions")
    assert preempted >= 2
    assert roomy["counters"]["num_preemptions"] == 0
    assert differing(narrow, roomy, at_least=100) == 0


@pytest.mark.parametrize(("batch", "alone"), [("solo", "solo"), ("end", "end, solo")])
def test_stock_vllm_drafts_otherwise_there(engines, batch, alone):
    """What would pass unseen if these proofs could not fail, and why `compat.py` and the preflight
    step in. The texts are right all the same."""
    stock = engines["stock"][batch]
    assert stock["tokens"] == engines["plain"][batch]["tokens"]
    assert differing(stock, engines["roomy"][alone], at_least=10) >= 5


class TestKByBatchSize:
    def test_drafts_follow_the_schedule(self, engines):
        result = engines["schedule"]["waves"]
        assert phases(result) == [4, 2, 1, 0, 1, 2, 4]
        assert_drafts_follow_the_schedule(result, SCHEDULE)

    def test_texts_and_drafts_are_those_of_a_fixed_k(self, engines):
        """A narrow draft is the beginning of a wide one, and steps without drafts leave no hole."""
        result, fixed = (engines[name]["waves"] for name in ("schedule", "roomy"))
        assert result["tokens"] == fixed["tokens"] == engines["plain"]["waves"]["tokens"]
        widths = drafts_by_width(result, fixed)
        print(f"\nwidth: drafts, differing from those of K={K}: {widths}")
        assert widths.keys() == {0, 1, 2, K}
        assert widths[K][0] >= 20
        assert sum(differ for _, differ in widths.values()) == 0


class TestPrefixCache:
    def test_a_repeated_prompt(self, engines):
        first, again = (engines["roomy"][batch] for batch in ("filling", "again"))
        # vLLM computes the last token anew.
        blocks = [max(0, (length - 1) // BLOCK - BLOCKS_ANEW) for length in LENGTHS]
        assert again["cached"] == [count * BLOCK for count in blocks]
        assert again["counters"]["prefix_cache_hits"] == sum(again["cached"]) > 0
        self.assert_same(first, again)

    def test_a_second_turn_behind_generated_text(self, engines):
        hit, cold = (engines["roomy"][batch] for batch in ("turn", "turn, cold"))
        assert cold["cached"] == [0] * len(LENGTHS)
        generated = [
            cached for cached, length in zip(hit["cached"], LENGTHS, strict=True) if cached > length
        ]
        print(f"\nfrom the cache: {hit['cached']}; behind the prompt: {generated}")
        assert min(generated) == BLOCK
        assert max(generated) == (4 - BLOCKS_ANEW) * BLOCK
        self.assert_same(cold, hit)

    def assert_same(self, without, hit):
        assert hit["tokens"] == without["tokens"]
        assert differing(hit, without, at_least=120) == 0
        assert hit["counters"][PER_POSITION] == without["counters"][PER_POSITION]
        drafts = [each["counters"]["spec_decode_num_drafts"] - padded(each) for each in (without, hit)]
        assert drafts[0] == drafts[1]


@pytest.mark.long
@pytest.mark.parametrize("k", [1, 7])
def test_other_k_at_the_end_of_the_context(engines, prompts, k):
    long = cut(prompts, TO_THE_END)
    wanted = [
        Batch("end", long, max_tokens=None),
        Batch("end, solo", long, concurrency=1, max_tokens=None),
    ]
    run = run_engines([Engine("k", wanted, eagle3("postnorm", k), engine_args=PLAIN)])["k"]
    for batch in run.values():
        assert batch["tokens"] == engines["plain"]["end"]["tokens"]
    assert differing(run["end"], run["end, solo"], at_least=20) == 0
    assert run["end"]["counters"] == run["end, solo"]["counters"]
