"""The trained DFlash draft on the trained hybrid target, V1 runner: replay against one state block per
draft token, texts against those without a draft, drafts against the reference on the engine's texts.

On fewer texts, and on V2: test_hybrid_replay.py. And a draft as z-lab's for Qwen3-Coder-Next on a random
target of its class.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import VOCAB
from tests.support.hybrid import (
    DFLASH_AUX_LAYERS,
    HybridRun,
    acceptance,
    assert_requests_add_up,
    dflash,
    dflash_of_one_layer,
    started,
)
from tests.support.near_ties import assert_only_near_ties
from tests.support.replay import assert_same_drafter, compare
from tests.support.targets.drafts import write_draft
from tests.support.targets.families import AUX_LAYERS, FAMILIES
from tests.support.targets.models import write_target
from tests.support.targets.run import ENGINE, candidates
from vllm_eagle_ext.measure.reference.dflash import DFlashReference
from vllm_eagle_ext.measure.reference.eagle3 import rms_norm

pytestmark = [pytest.mark.e2e, pytest.mark.full]

K = 7
PROMPTS, MAX_TOKENS, WIDTH = 80, 72, 20
CONTROL = GROUPED = 20  # texts
RECURRENT_LAYERS = 6
EQUAL_IDS = 0.99
NEXT_K, NEXT_TEXTS = 15, 16


@pytest.fixture(scope="module")
def texts(prompts):
    return {"prompts": prompts[:PROMPTS], "max_tokens": MAX_TOKENS, "concurrency": WIDTH}


@pytest.fixture(scope="module")
def v1(texts):
    return started([HybridRun("replay", state="replay", speculative=dflash(K), record=True, **texts)])


@pytest.fixture(scope="module")
def more(texts, prompts, tmp_path_factory):
    one_layer = dflash_of_one_layer(tmp_path_factory.mktemp("one_layer"), K)
    few = {"prompts": prompts[:GROUPED], "max_tokens": MAX_TOKENS, "speculative": one_layer}
    next_runs = qwen3_next(tmp_path_factory.mktemp("qwen3_next"))
    runs = [
        HybridRun("plain", logprobs=5, **texts),
        HybridRun("per_token", state="per_token", speculative=dflash(K), **texts),
        HybridRun("groups per_token", state="per_token", **few),
        HybridRun("groups replay", state="replay", **few),
        *next_runs,
    ]
    return started(runs)


def qwen3_next(folder):
    """Runs without a draft, and with drafts that are right for 0 to K tokens: a random one is never."""
    target = write_target("qwen3-next", folder / "target", torch.bfloat16)
    path, draft = write_draft("dflash:zlab_qwen3_coder_next", len(AUX_LAYERS), folder / "draft")
    common = {
        "prompts": candidates()[:NEXT_TEXTS],
        "max_tokens": 48,
        "engine_args": ENGINE | FAMILIES["qwen3-next"].engine,
        "target": target,
    }
    drafted = common | {
        "speculative": {"method": draft.method, "model": str(path), "num_speculative_tokens": NEXT_K},
        "options": {"aux_layers": list(AUX_LAYERS)},
        "follow": "next plain",
        "vocab": VOCAB,
    }
    states = ("per_token", "replay")
    return [
        HybridRun("next plain", logprobs=5, **common),
        *(HybridRun(f"next {state}", state=state, **drafted) for state in states),
    ]


@pytest.fixture(scope="module")
def comparison(v1, hybrid_target, dflash_walk, prompts):
    texts = prompts[:PROMPTS]
    return compare(v1["replay"], hybrid_target, dflash_walk, DFLASH_AUX_LAYERS, texts, K, chained=False)


@pytest.mark.long
def test_replay_equals_one_state_block_per_token(v1, more):
    per_token, replayed = more["per_token"], v1["replay"]
    assert replayed["tokens"] == per_token["tokens"]
    assert replayed["counters"] == per_token["counters"]
    assert replayed["counters"]["spec_decode_num_drafts"] > 1500


@pytest.mark.long
def test_each_recurrent_layer_in_a_group_of_its_own(v1, more):
    per_token, replayed = more["groups per_token"], more["groups replay"]
    assert len(replayed["state_blocks"]["groups"]) == RECURRENT_LAYERS
    assert len(v1["replay"]["state_blocks"]["groups"]) < RECURRENT_LAYERS
    assert replayed["tokens"] == per_token["tokens"]
    assert replayed["counters"] == per_token["counters"]
    assert replayed["counters"]["spec_decode_num_accepted_tokens"] > 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["per_token", "replay"])
def test_texts_are_those_without_a_draft(v1, more, name):
    assert_only_near_ties(more["plain"], (v1 | more)[name]["tokens"], name)


@pytest.mark.long
def test_replay_on_qwen3_next_equals_one_state_block_per_token(more):
    per_token, replayed = more["next per_token"], more["next replay"]
    for result, blocks in ((per_token, 1 + NEXT_K), (replayed, 2)):  # with the CPU's scratch block
        groups = result["state_blocks"]["groups"]
        assert {group["blocks_per_request"] for group in groups} == {blocks}
    assert replayed["tokens"] == per_token["tokens"]
    assert replayed["counters"] == per_token["counters"]
    assert min(replayed["counters"]["spec_decode_num_accepted_tokens_per_pos"][: NEXT_K // 2]) > 0
    assert_only_near_ties(more["next plain"], replayed["tokens"], "next replay")


def test_engine_drafts_as_the_reference(v1, comparison):
    assert_same_drafter(comparison, drafts=1500, bound=0.03, equal_ids=EQUAL_IDS)
    assert acceptance(v1["replay"]) == pytest.approx(comparison.engine_acceptance, abs=0.02)
    assert_requests_add_up(v1["replay"])


def test_it_is_worth_drafting_for(v1):
    length = 1 + sum(acceptance(v1["replay"]))
    print(f"\n{length:.3f} tokens per step")
    assert length >= 1.9


class StockOnCpu(DFlashReference):
    """The weight of layer 0 norms the context's keys of every layer (vLLM 0.32 on a CPU)."""

    def norm_keys(self, w, k, context):
        first = rms_norm(k[:context], self.weights["layers.0.self_attn.k_norm.weight"], self.eps)
        return torch.cat([first, super().norm_keys(w, k[context:], 0)])


class TestNegativeControls:
    """Each would pass for the engine's drafter if this proof could not fail."""

    def equal_ids(self, v1, target, walk, prompts, layer_ids=DFLASH_AUX_LAYERS):
        texts = prompts[:CONTROL]
        tally = compare(v1["replay"], target, walk, layer_ids, texts, K, chained=False)
        return min(tally.equal_share)

    def test_aux_layers_shifted_by_one(self, v1, hybrid_target, dflash_walk, prompts):
        shifted = tuple(b - 1 for b in DFLASH_AUX_LAYERS)
        assert self.equal_ids(v1, hybrid_target, dflash_walk, prompts, layer_ids=shifted) < 0.90

    def test_context_keys_normed_as_stock_vllm_does(self, v1, hybrid_target, dflash_walk, prompts):
        """These norms differ by a twelfth between the two layers, which is less than a wrong layer."""
        stock = StockOnCpu(**vars(dflash_walk))
        assert self.equal_ids(v1, hybrid_target, stock, prompts) < EQUAL_IDS - 0.01
