"""Chunked prompts, preemption, prefix hits, sampling and a JSON schema on the V2 runner: see test_v2.py.

As test_under_load.py on V1, with fewer tokens: Triton's interpreter is slow.
"""

from __future__ import annotations

import pytest

from tests.support.batches import Batch, Engine, differing, drafts_of, eagle3, run_engines
from tests.support.dense import POSTNORM_AUX_LAYERS
from tests.support.kinds import COMPACT, SCHEMA, assert_last_fits_schema
from tests.support.replay import compare
from tests.support.schedules import BLOCK, CHUNK, LENGTH, cut

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

K = 4
PLAIN = {
    "dtype": "float32", "block_size": BLOCK, "max_model_len": LENGTH,
    "structured_outputs_config": COMPACT,
}  # fmt: skip
# Five KV-cache blocks (a sixth is vLLM's null block) for three requests of up to three.
NARROW = PLAIN | {
    "max_num_batched_tokens": CHUNK, "max_num_seqs": 3, "num_gpu_blocks_override": 6,
    "enable_prefix_caching": True,
}  # fmt: skip
LENGTHS = (50, 60, 70)  # of prompts; none is one chunk
TO_THE_END = (LENGTH - 10, 60)
TOKENS, SHORT = 20, 12
SEEDED = {"temperature": 1.0, "seed": 7}
ASKED = [SEEDED, {}, {"json": SCHEMA, "max_tokens": 64, "ignore_eos": False}]


@pytest.fixture(scope="module")
def engines(prompts):
    texts = cut(prompts, LENGTHS)
    mixed = [texts[0][:SHORT], texts[0][:SHORT], texts[0][:40]]
    batches = [
        Batch("crowd", texts, max_tokens=TOKENS, cold=True),
        Batch("kinds", mixed, asked=ASKED, max_tokens=TOKENS, cold=True),
        Batch("end", cut(prompts, TO_THE_END), max_tokens=[10, 24], cold=True),
    ]
    narrow = [
        *batches,
        Batch("solo", texts, concurrency=1, max_tokens=TOKENS, cold=True),
        Batch("again", texts[-1:], concurrency=1, max_tokens=TOKENS),
        Batch("seeded, by itself", mixed[:1], asked=ASKED[:1], max_tokens=TOKENS, cold=True),
    ]
    drafted = Engine("narrow", narrow, eagle3("postnorm", K), engine_args=NARROW)
    return run_engines([Engine("plain", batches, engine_args=PLAIN), drafted], "v2")


@pytest.mark.parametrize("batch", ["crowd", "solo", "again", "end"])
def test_texts_are_those_without_a_draft(engines, batch):
    plain = engines["plain"]["end" if batch == "end" else "crowd"]["tokens"]
    narrow = engines["narrow"][batch]
    assert narrow["tokens"] == (plain[-1:] if batch == "again" else plain)
    assert narrow["counters"]["spec_decode_num_accepted_tokens"] > 3


def test_drafts_behind_a_chunked_prompt_are_those_of_the_reference(engines, target, postnorm_reference):
    solo = engines["narrow"]["solo"]
    drafts = [[own[length] for length in sorted(own)] for own in drafts_of(solo)]
    result = solo | {"drafts": drafts}
    tally = compare(result, target, postnorm_reference, POSTNORM_AUX_LAYERS, solo["prompts"], K)
    assert tally.drafts >= 10
    assert min(tally.equal_share) == 1


def test_preempted_requests_go_on_with_the_same_drafts(engines):
    crowd, solo = engines["narrow"]["crowd"], engines["narrow"]["solo"]
    assert crowd["counters"]["num_preemptions"] >= 1
    assert solo["counters"]["num_preemptions"] == 0
    assert differing(crowd, solo, at_least=10) == 0


def test_a_hit_changes_no_draft(engines):
    again, solo = engines["narrow"]["again"], engines["narrow"]["solo"]
    assert again["counters"]["prefix_cache_hits"] == again["cached"][0] >= BLOCK
    own = {key: solo[key][-1:] for key in ("prompts", "tokens", "placed", "rows")}
    assert differing(again, solo | own, at_least=4) == 0


def test_a_seeded_text_repeats_itself(engines):
    seeded, greedy, _ = engines["narrow"]["kinds"]["tokens"]
    assert greedy == engines["plain"]["kinds"]["tokens"][1]
    assert engines["narrow"]["seeded, by itself"]["tokens"] == [seeded]
    assert len(seeded) == TOKENS
    assert seeded != greedy


def test_an_answer_fits_its_json_schema(engines):
    kinds = engines["narrow"]["kinds"]
    assert_last_fits_schema(kinds)
    assert kinds["tokens"][2] == engines["plain"]["kinds"]["tokens"][2]
