"""DFlash beside a dense target under a server's schedule: the drafts at a length are always the same.

A random draft, whose drafts are wrong but tell its context: users report that vLLM's acceptance falls
after a hit in the prefix cache (vllm#47930). float32, so that no near-tie is in the way.
"""

from __future__ import annotations

import random

import pytest

from tests.support.batches import Batch, Engine, differing, run_engines
from tests.support.drafts import BLOCK as DRAFT_BLOCK
from tests.support.drafts import valid_draft, write
from tests.support.random_targets import write_random_target
from tests.support.schedules import PER_POSITION, PLAIN

pytestmark = [pytest.mark.e2e, pytest.mark.long]

K, TURN = DRAFT_BLOCK - 1, 40
BLOCK, LENGTH = PLAIN["block_size"], PLAIN["max_model_len"]
LENGTHS = (
    1,
    1 + K,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    2 * BLOCK,
    3 * BLOCK - 1,
    110,
)
ON_V2 = (120, 115)  # two cache blocks each
# Longest request and block together stay inside max_model_len, see the test of its end.
CROWD, CROWD_TOKENS = (40, 60, 70, 50, 33), 60
TO_THE_END = (120, 64, 100, 145, 150)
CHUNK = 16
DENSE = PLAIN | {"skip_tokenizer_init": True}
ROOMY = DENSE | {"enable_prefix_caching": True}
# vLLM sets K token places of each request aside for its block of drafts.
NARROW = DENSE | {
    "max_num_seqs": 3,
    "max_num_batched_tokens": CHUNK + 3 * K,
    "num_gpu_blocks_override": 8,
}


def texts(*lengths: int) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(100) for _ in range(length)] for length in lengths]


def turns(prompts: list[list[int]], tokens: int) -> list[Batch]:
    then = [5, 6, 7]
    return [
        Batch("solo", prompts, concurrency=1, max_tokens=tokens, cold=True),
        Batch("again", prompts, concurrency=1, max_tokens=tokens),
        Batch("turn", follows="solo", then=then, concurrency=1, max_tokens=10),
        Batch("turn, cold", follows="solo", then=then, concurrency=1, max_tokens=10, cold=True),
    ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    draft = write(valid_draft("dflash"), folder / "draft")
    speculative = {"method": "dflash", "model": str(draft), "num_speculative_tokens": K}
    return write_random_target(folder / "target"), speculative


@pytest.fixture(scope="module")
def v1(pair):
    target, speculative = pair
    prompts = texts(*LENGTHS)
    common = [
        Batch("solo", prompts, concurrency=1, max_tokens=TURN, cold=True),
        Batch("together", prompts, max_tokens=TURN, cold=True),
        Batch("crowd", texts(*CROWD), max_tokens=CROWD_TOKENS, cold=True),
        Batch("end", texts(*TO_THE_END), max_tokens=None, cold=True),
    ]
    roomy = [
        *common[1:],
        Batch("end, solo", texts(*TO_THE_END), concurrency=1, max_tokens=None, cold=True),
        *turns(prompts, TURN),
    ]
    return run_engines(
        [
            Engine("plain", common, engine_args=DENSE, target=target),
            Engine("roomy", roomy, speculative, engine_args=ROOMY, target=target),
            Engine("narrow", common, speculative, engine_args=NARROW, target=target),
        ]
    )


@pytest.mark.parametrize("batch", ["solo", "together", "crowd", "end"])
@pytest.mark.parametrize("engine", ["roomy", "narrow"])
def test_texts_are_those_without_a_draft(v1, engine, batch):
    assert v1[engine][batch]["tokens"] == v1["plain"][batch]["tokens"]


def test_chunks_and_other_requests_change_no_draft(v1):
    alone = v1["roomy"]["solo"]
    chunked = v1["narrow"]["solo"]
    more = [a - b for a, b in zip(chunked["rows"], alone["rows"], strict=True)]
    assert max(more) >= 2
    for other in (chunked, v1["roomy"]["together"], v1["narrow"]["together"]):
        assert differing(other, alone, at_least=200) == 0


def test_a_preempted_request_goes_on_with_the_same_drafts(v1):
    roomy, narrow = (v1[engine]["crowd"] for engine in ("roomy", "narrow"))
    print(f"\n{narrow['counters']['num_preemptions']} preemptions")
    assert narrow["counters"]["num_preemptions"] >= 2
    assert differing(narrow, roomy, at_least=150) == 0


def assert_same_after_a_hit(batches):
    for without, hit in (("solo", "again"), ("turn, cold", "turn")):
        without, hit = batches[without], batches[hit]
        print(f"\nfrom the cache: {hit['cached']}")
        assert hit["counters"]["prefix_cache_hits"] == sum(hit["cached"]) >= 3 * BLOCK
        assert sum(without["cached"]) == 0
        assert hit["tokens"] == without["tokens"]
        assert differing(hit, without, at_least=20) == 0
        assert hit["counters"][PER_POSITION] == without["counters"][PER_POSITION]


def test_a_hit_in_the_prefix_cache_changes_no_draft(v1):
    assert_same_after_a_hit(v1["roomy"])
    in_generated = [
        cached
        for cached, length in zip(v1["roomy"]["turn"]["cached"], LENGTHS, strict=True)
        if cached > length
    ]
    assert in_generated


@pytest.mark.v2
def test_a_hit_in_the_prefix_cache_changes_no_draft_on_v2(pair):
    target, speculative = pair
    batches = turns(texts(*ON_V2), 20)
    engine = Engine("v2", batches, speculative, engine_args=ROOMY, target=target)
    assert_same_after_a_hit(run_engines([engine], "v2")["v2"])


def test_the_cache_block_that_vllm_drops_of_a_hit_need_not_be_dropped(pair, v1):
    """A row of this draft's cache depends on its own token, not on the next one, as EAGLE's rows do."""
    target, speculative = pair
    kept = speculative | {"disable_eagle_block_drop": True}
    batches = turns(texts(*LENGTHS), TURN)
    run = run_engines([Engine("kept", batches, kept, engine_args=ROOMY, target=target)])["kept"]
    assert run["again"]["cached"] == [(length - 1) // BLOCK * BLOCK for length in LENGTHS]
    assert_same_after_a_hit(run)
    assert differing(run["turn"], v1["roomy"]["turn, cold"], at_least=20) == 0
