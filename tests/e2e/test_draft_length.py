"""`draft_length: "auto"` on real engines, V1 runner: K changes from step to step, texts do not.

A dense pair with a chain of drafts, and a hybrid pair with a parallel drafter and replay. Batches whose
name begins with `cycled` get a random length of the menu in each step.
"""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_scheduling import CROWD, LENGTHS, PER_POSITION, cut
from tests.support.batches import Batch, Engine, eagle3
from tests.support.draft_lengths import CYCLED, auto, run_auto
from tests.support.engine import TINY
from tests.support.hybrid import TARGET as HYBRID
from tests.support.kinds import COMPACT, SCHEMA
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps

pytestmark = [pytest.mark.e2e, pytest.mark.full]

CHUNK, BLOCK = 16, 32
MENUS = {"dense": (0, 1, 2, 4), "hybrid": (0, 1, 3, 7)}
COMMON = {"max_num_seqs": 8, "structured_outputs_config": COMPACT}
DENSE = COMMON | {"dtype": "float32", "block_size": BLOCK, "max_model_len": 160}
ROOMY = DENSE | {"enable_prefix_caching": True}
NARROW = DENSE | {"max_num_batched_tokens": CHUNK, "max_num_seqs": 3, "num_gpu_blocks_override": 8}
WIDE = COMMON | {"max_model_len": 512, "max_num_batched_tokens": 128}  # V1 caches no prefix of states
JSON = {"json": SCHEMA, "max_tokens": 96, "ignore_eos": False}
SAMPLED = {"temperature": 1.0}  # without a seed, which a chunked prompt does not bear on a CPU (0.32)
# Sums of batches of other shapes; vLLM's CPU kernels of gated delta nets take bf16 alone.
TIES = {"dense": 1e-3, "hybrid": NEAR_TIE_GAP}


def batches(prompts):
    """The lengths of the controller's own choice first: a new engine tries each."""
    short = cut(prompts, LENGTHS)
    mixed = [{}, JSON, SAMPLED] * 3
    return [
        Batch("chosen", short, max_tokens=40, cold=True, logprobs=5),
        Batch("chosen again", short, max_tokens=50, concurrency=2, cold=True, logprobs=5),
        Batch("cycled", short, max_tokens=40, cold=True, logprobs=5),
        Batch("cycled again", short, max_tokens=30, logprobs=5),
        Batch("cycled crowd", cut(prompts, CROWD), max_tokens=80, cold=True, logprobs=5),
        Batch("cycled kinds", [p[:20] for p in prompts[:9]], max_tokens=40, asked=mixed, logprobs=5),
    ]


@pytest.fixture(scope="module")
def engines(prompts):
    common = batches(prompts)
    dflash = {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": 7}
    chain, both = eagle3("postnorm", 4), {name: auto(menu) for name, menu in MENUS.items()}
    return run_auto(
        [
            Engine("dense, no draft", common, engine_args=DENSE),
            Engine("dense, roomy", common, chain, ROOMY, both["dense"]),
            Engine("dense, narrow", common, chain, NARROW, both["dense"]),
            Engine("hybrid, no draft", common, engine_args=WIDE, target=HYBRID),
            Engine("hybrid, wide", common, dflash, WIDE, both["hybrid"], target=HYBRID),
        ]
    )


DRAFTED = ["dense, roomy", "dense, narrow", "hybrid, wide"]
BATCHES = ["chosen", "chosen again", "cycled", "cycled again", "cycled crowd", "cycled kinds"]


def menu_of(engine):
    return MENUS[engine.partition(",")[0]]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("engine", DRAFTED)
def test_greedy_texts_are_those_without_a_draft(engines, engine, batch):
    """Near-ties apart; a sampled request draws other numbers where K differs."""
    results, _ = engines
    pair = engine.partition(",")[0]
    plain, drafted = results[f"{pair}, no draft"][batch], results[engine][batch]
    greedy = [i for i in range(len(plain["tokens"])) if batch != "cycled kinds" or i % 3 < 2]
    texts, logprobs, own = (
        [of[key][i] for i in greedy]
        for of, key in ((plain, "tokens"), (plain, "logprobs"), (drafted, "tokens"))
    )
    assert plain["prompts"] == drafted["prompts"]
    gaps = near_tie_gaps(texts, logprobs, own)
    print(f"\n{len(gaps)} of {len(texts)} texts diverge, at gaps up to {max(gaps, default=0):.4f}")
    assert max(gaps, default=0) <= TIES[pair]


@pytest.mark.parametrize("engine", DRAFTED)
def test_every_length_was_in_force(engines, engine):
    results, _ = engines
    for batch in BATCHES:
        assert set(results[engine][batch]["lengths"]) <= set(menu_of(engine))
    assert set(results[engine]["cycled"]["lengths"]) == set(menu_of(engine))
    chosen = results[engine]["chosen"]["lengths"] + results[engine]["chosen again"]["lengths"]
    assert set(chosen) == set(menu_of(engine)), "a new engine tries each"


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("engine", DRAFTED)
def test_counters_are_those_of_the_lengths(engines, engine, batch):
    results, _ = engines
    counters, longest = results[engine][batch]["counters"], max(menu_of(engine))
    drafts, tokens = counters["spec_decode_num_drafts"], counters["spec_decode_num_draft_tokens"]
    per_position = counters[PER_POSITION]
    assert 0 < drafts <= tokens <= drafts * longest  # one token a draft may have been the best choice
    assert drafts < tokens < drafts * longest or not batch.startswith(CYCLED)
    assert len(per_position) == longest
    assert per_position == sorted(per_position, reverse=True)
    assert sum(per_position) == counters["spec_decode_num_accepted_tokens"] <= tokens


@pytest.mark.parametrize("engine", DRAFTED)
def test_drafts_have_the_length_of_their_step(engines, engine):
    """What was proposed: nothing where K was 0, and nothing longer than the longest in force."""
    results, _ = engines
    found = {len(row) for one in results[engine]["cycled"]["placed"] for row in one.values()}
    assert found == set(menu_of(engine))


def test_chunks_preemptions_and_the_prefix_cache_were_met(engines):
    results, _ = engines
    narrow, roomy = results["dense, narrow"], results["dense, roomy"]
    assert narrow["cycled crowd"]["counters"]["num_preemptions"] >= 1
    assert max(narrow["cycled"]["rows"]) > max(roomy["cycled"]["rows"])
    assert sum(roomy["cycled again"]["cached"]) > 0


@pytest.mark.parametrize("engine", DRAFTED)
def test_structured_outputs_keep_to_their_schema(engines, engine, tokenizer):
    results, _ = engines
    texts = results[engine]["cycled kinds"]
    ended = [i for i in range(1, 9, 3) if texts["finish"][i] == "stop"]
    assert ended
    for i in ended:
        text = json.loads(tokenizer.decode(texts["tokens"][i], skip_special_tokens=True))
        assert set(text) == set(SCHEMA["required"])


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY / "target")


def test_the_log_names_the_menu(engines):
    _, log = engines
    assert "Draft length: chosen for each step among 0, 1, 2, 4." in log
    assert "Draft length: chosen for each step among 0, 1, 3, 7." in log
