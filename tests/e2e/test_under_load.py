"""Chunked prompts, preemption, prefix caching, sampling and a JSON schema, all on one small engine.

The part of `make test` for what the README says works everywhere. float32, against near-ties.
Other drafts, runners and settings, and stock vLLM beside: test_scheduling.py, test_request_kinds.py,
test_sampling.py.
"""

from __future__ import annotations

import pytest

from tests.support.batches import Batch, Engine, differing, drafts_of, eagle3, run_engines
from tests.support.dense import POSTNORM_AUX_LAYERS
from tests.support.kinds import COMPACT, SCHEMA, assert_last_fits_schema
from tests.support.replay import compare
from tests.support.schedules import BLOCK, CHUNK, LENGTH, cut

pytestmark = pytest.mark.e2e

K = 4
PLAIN = {
    "dtype": "float32",
    "block_size": BLOCK,
    "max_model_len": LENGTH,
    "structured_outputs_config": COMPACT,
}
# Six KV-cache blocks (a seventh is vLLM's null block) for three requests of up to four.
NARROW = PLAIN | {
    "max_num_batched_tokens": CHUNK,
    "max_num_seqs": 3,
    "num_gpu_blocks_override": 7,
    "enable_prefix_caching": True,
}
LENGTHS = (40, 60, 70, 50)  # of prompts; none is one chunk
TURN = 60  # tokens: a second turn finds KV-cache blocks that end in generated text
SEEDED = {"temperature": 1.0, "seed": 7}
# The seeded request comes first, so that its prompt is one chunk:
# docs/dev/vllm_faults/cpu_seed_in_chunks.py.
ASKED = [SEEDED, {}, {"json": SCHEMA, "max_tokens": 96, "ignore_eos": False}]
SHORT = 12  # tokens of its prompt


@pytest.fixture(scope="module")
def engines(prompts):
    texts = cut(prompts, LENGTHS)
    mixed = [texts[0][:SHORT], texts[0][:SHORT], texts[0]]
    turn = {"then": prompts[50][:3], "concurrency": 1, "max_tokens": 24}
    batches = [
        Batch("crowd", texts, max_tokens=TURN, cold=True),
        Batch("kinds", mixed, asked=ASKED, max_tokens=TURN, cold=True),
        Batch("first turn", texts[:1], max_tokens=TURN, cold=True),
        Batch("second turn", follows="first turn", **turn),
    ]
    narrow = [
        *batches,
        Batch("second turn, cold", follows="first turn", cold=True, **turn),
        Batch("solo", texts, concurrency=1, max_tokens=TURN, cold=True),
        Batch("seeded, alone", mixed[:1], asked=ASKED[:1], max_tokens=TURN, cold=True),
    ]
    wanted = [
        Engine("plain", batches, engine_args=PLAIN),
        Engine("narrow", narrow, eagle3("postnorm", K), engine_args=NARROW),
    ]
    return run_engines(wanted)


@pytest.fixture(scope="module")
def drafted(engines):
    return engines["narrow"]


@pytest.mark.promise("prefix caching: text", id="second turn")
@pytest.mark.promise("preemption: text", id="crowd")
@pytest.mark.promise("chunked prefill: text", id="solo")
@pytest.mark.parametrize("batch", ["crowd", "solo", "second turn", "second turn, cold"])
def test_texts_are_those_without_a_draft(engines, drafted, batch):
    plain = engines["plain"]["second turn" if "turn" in batch else "crowd"]
    assert drafted[batch]["tokens"] == plain["tokens"]
    assert drafted[batch]["counters"]["spec_decode_num_accepted_tokens"] > 10


@pytest.fixture
def compared(drafted, target, postnorm_reference):
    """Drafts behind chunked prompts with those of the reference, which reads these layers."""
    solo = drafted["solo"]
    drafts = [[own[length] for length in sorted(own)] for own in drafts_of(solo)]

    def compare_all(layer_ids):
        result = solo | {"drafts": drafts}
        tally = compare(result, target, postnorm_reference, layer_ids, solo["prompts"], K)
        assert tally.drafts >= 70
        return tally

    return compare_all


@pytest.mark.promise("chunked prefill: drafts")
def test_drafts_behind_a_chunked_prompt_are_those_of_the_reference(drafted, compared):
    solo = drafted["solo"]
    inside = [rows - len(own) for rows, own in zip(solo["rows"], solo["placed"], strict=True)]
    assert inside == [(length - 1) // CHUNK for length in LENGTHS]  # a prompt's chunks, less one
    assert min(compared(POSTNORM_AUX_LAYERS).equal_share) == 1


def test_a_reference_that_reads_other_layers_drafts_otherwise(compared):
    """The negative control; more of them: test_in_float32.py."""
    assert min(compared([layer_id - 1 for layer_id in POSTNORM_AUX_LAYERS]).equal_share) < 0.95


@pytest.mark.promise("preemption: drafts")
def test_preempted_requests_go_on_with_the_same_drafts(drafted):
    crowd, solo = drafted["crowd"], drafted["solo"]
    assert crowd["counters"]["num_preemptions"] >= 2
    assert solo["counters"]["num_preemptions"] == 0
    assert differing(crowd, solo, at_least=70) == 0


@pytest.mark.promise("prefix caching: drafts")
def test_a_second_turn_finds_generated_text_in_the_prefix_cache(drafted):
    hit, cold = drafted["second turn"], drafted["second turn, cold"]
    assert hit["counters"]["prefix_cache_hits"] == hit["cached"][0] > LENGTHS[0]
    assert cold["counters"]["prefix_cache_hits"] == cold["cached"][0] == 0
    assert differing(hit, cold, at_least=5) == 0


@pytest.mark.promise("sampling: a seeded text repeats itself, greedy ones next to it stay")
def test_a_seeded_text_repeats_itself(engines, drafted):
    seeded, greedy, _ = drafted["kinds"]["tokens"]
    assert greedy == engines["plain"]["kinds"]["tokens"][1]
    assert drafted["seeded, alone"]["tokens"] == [seeded]
    assert len(seeded) == TURN
    assert seeded != greedy


@pytest.mark.promise("structured output: an answer fits its schema")
def test_an_answer_fits_its_json_schema(engines, drafted):
    assert_last_fits_schema(drafted["kinds"])
    assert drafted["kinds"]["tokens"][2] == engines["plain"]["kinds"]["tokens"][2]
