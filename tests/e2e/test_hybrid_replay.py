"""The DFlash pair on the hybrid target, as it is served by default: replay, chosen by itself.

The part of `make test` for DFlash, hybrid targets and replay on both runners. Figures and negative
controls: test_hybrid_dflash.py; every accept length, batch and fault: test_hybrid.py, test_hybrid_v2.py.
"""

from __future__ import annotations

import pytest

from tests.support.batches import section
from tests.support.hybrid import DFLASH_AUX_LAYERS, HybridRun, dflash, started, with_log
from tests.support.near_ties import assert_only_near_ties
from tests.support.replay import compare

pytestmark = pytest.mark.e2e

K, FEW_K = 7, 2
BLOCKS = "state blocks per request (committed state"
PROMPTS, MAX_TOKENS = 20, 72
EQUAL_IDS = 0.99


@pytest.fixture(scope="module")
def v1(prompts):
    texts = {"prompts": prompts[:PROMPTS], "max_tokens": MAX_TOKENS}
    return with_log(
        [
            HybridRun("plain", logprobs=5, **texts),
            HybridRun("per_token", state="per_token", speculative=dflash(K), **texts),
            HybridRun("auto", state="auto", speculative=dflash(K), record=True, **texts),
            HybridRun("few", state="auto", speculative=dflash(FEW_K), **texts),
        ]
    )


@pytest.fixture(scope="module")
def v2(prompts):
    """A few tokens: Triton's interpreter is slow."""
    few = {"prompts": [prompt[:24] for prompt in prompts[:2]], "max_tokens": 12, "logprobs": 5}
    states = ("per_token", "replay")
    runs = [HybridRun(state, state=state, speculative=dflash(K), record=True, **few) for state in states]
    return started(runs, "v2")


@pytest.mark.promise("replay is one state block per draft token to the bit, with one block per request")
def test_replay_equals_one_state_block_per_token(v1):
    per_token, replayed = v1[0]["per_token"], v1[0]["auto"]
    assert replayed["tokens"] == per_token["tokens"]
    assert replayed["counters"] == per_token["counters"]
    assert replayed["counters"]["spec_decode_num_drafts"] > 300


@pytest.mark.promise("the V2 runner: replay")
@pytest.mark.v2
def test_replay_equals_one_state_block_per_token_on_v2(v2):
    """Bit for bit: tokens, their log-probabilities, drafts and counters."""
    for part in ("tokens", "logprobs", "drafts", "counters"):
        assert v2["replay"][part] == v2["per_token"][part], part
    assert v2["replay"]["counters"]["spec_decode_num_drafts"] >= 10
    assert v2["replay"]["counters"]["spec_decode_num_accepted_tokens"] > 0
    # The second of replay's is the CPU's scratch block.
    for state, blocks in (("per_token", 1 + K), ("replay", 2)):
        groups = v2[state]["state_blocks"]["groups"]
        assert {group["blocks_per_request"] for group in groups} == {blocks}


@pytest.mark.promise("DFlash on a hybrid target: the text is that without a draft")
@pytest.mark.parametrize("name", ["per_token", "auto", "few"])
def test_texts_are_those_without_a_draft(v1, name):
    plain, drafted = v1[0]["plain"], v1[0][name]["tokens"]
    assert_only_near_ties(plain, drafted, name)


@pytest.mark.promise("DFlash drafts as it was trained to")
def test_drafts_are_those_of_the_reference(v1, hybrid_target, dflash_walk, prompts):
    texts, result = prompts[:PROMPTS], v1[0]["auto"]
    tally = compare(result, hybrid_target, dflash_walk, DFLASH_AUX_LAYERS, texts, K, chained=False)
    assert tally.drafts >= 400
    assert min(tally.equal_share) >= EQUAL_IDS


@pytest.mark.promise("it is chosen by itself where it is possible, and the log says so")
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("auto", f"replay, 2 {BLOCKS}, CPU scratch); {K} draft tokens, on a CPU."),
        ("few", f"replay, 2 {BLOCKS}, CPU scratch); {FEW_K} draft tokens, on a CPU."),
    ],
    ids=["auto", "few"],
)
def test_auto_says_what_it_chose(v1, name, chosen):
    results, log = v1
    said = " ".join(section(log, name).split())
    assert f"Recurrent state of Qwen3_5ForCausalLM: {chosen}" in said
    groups = results[name]["state_blocks"]["groups"]
    assert {group["blocks_per_request"] for group in groups} == {2}  # one is the CPU's scratch
