"""The V2 runner under the schedules of `test_scheduling`: few requests, Triton's interpreter is slow."""

from __future__ import annotations

import pytest

from tests.support.batches import Batch, Engine, differing, eagle3, run_engines
from tests.support.schedules import BLOCK, CHUNK, LENGTH, PER_POSITION, PLAIN, cut

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

K = 4
LENGTHS = (CHUNK + 1, BLOCK, 3 * BLOCK - 1)
TO_THE_END = (LENGTH - 10, 60)
CROWD = (50, 60, 60)
TOKENS = 12
NARROW = PLAIN | {"max_num_batched_tokens": CHUNK, "max_num_seqs": 3, "num_gpu_blocks_override": 6}


def batches(prompts):
    return [
        Batch("solo", cut(prompts, LENGTHS), concurrency=1, max_tokens=TOKENS, cold=True),
        Batch("end", cut(prompts, TO_THE_END), max_tokens=[10, 24], cold=True),
        Batch("crowd", cut(prompts, CROWD), max_tokens=24, cold=True),
    ]


@pytest.fixture(scope="module")
def v1(prompts):
    return run_engines([Engine("plain", batches(prompts), engine_args=PLAIN)])["plain"]


@pytest.fixture(scope="module", params=["postnorm", "gated"])
def v2(request, prompts):
    speculative, cached = eagle3(request.param, K), PLAIN | {"enable_prefix_caching": True}
    again = Batch("again", cut(prompts, LENGTHS), concurrency=1, max_tokens=TOKENS)
    common = batches(prompts)
    return run_engines(
        [
            Engine("roomy", [*common[1:], common[0], again], speculative, engine_args=cached),
            Engine("narrow", common, speculative, engine_args=NARROW),
        ],
        "v2",
    )


@pytest.mark.parametrize("batch", ["solo", "end", "crowd"])
@pytest.mark.parametrize("engine", ["roomy", "narrow"])
def test_texts_are_those_without_a_draft(v1, v2, engine, batch):
    assert v2[engine][batch]["tokens"] == v1[batch]["tokens"]


@pytest.mark.parametrize("batch", ["solo", "end", "crowd"])
def test_the_schedule_changes_no_draft(v2, batch):
    assert differing(v2["narrow"][batch], v2["roomy"][batch], at_least=6) == 0


def test_the_schedule_was_narrow(v2):
    roomy, narrow = v2["roomy"]["solo"], v2["narrow"]["solo"]
    more = [a - b for a, b in zip(narrow["rows"], roomy["rows"], strict=True)]
    assert more == [(length - 1) // CHUNK for length in LENGTHS]
    assert v2["narrow"]["crowd"]["counters"]["num_preemptions"] >= 1


def test_a_hit_in_the_prefix_cache_changes_no_draft(v2):
    first, again = v2["roomy"]["solo"], v2["roomy"]["again"]
    assert again["counters"]["prefix_cache_hits"] == sum(again["cached"]) >= BLOCK
    assert again["tokens"] == first["tokens"]
    assert differing(again, first, at_least=12) == 0
    assert again["counters"][PER_POSITION] == first["counters"][PER_POSITION]
