"""A DFlash draft on a hybrid target and the V2 runner, under Triton's interpreter: see test_v2.py."""

from __future__ import annotations

import pytest

from tests.support.hybrid import HybridRun, dflash, started
from tests.support.near_ties import assert_only_near_ties

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.full]

K = 3
TOKENS = 10


@pytest.fixture(scope="module")
def hybrid_on_v2(prompts):
    few = {"prompts": prompts[:2], "max_tokens": TOKENS, "logprobs": 5}
    runs = [
        HybridRun(state, state=state, speculative=dflash(K), **few) for state in ("per_token", "replay")
    ]
    return started([HybridRun("plain", **few), *runs], "v2")


@pytest.mark.promise("the V2 runner: replay")
@pytest.mark.promise("replay is one state block per draft token to the bit, with one block per request")
def test_replay_is_one_state_block_per_token(hybrid_on_v2):
    replay, per_token = hybrid_on_v2["replay"], hybrid_on_v2["per_token"]
    assert replay["tokens"] == per_token["tokens"]
    assert replay["counters"] == per_token["counters"]
    assert replay["counters"]["spec_decode_num_accepted_tokens"] > 0
    kept, others = (
        one["state_blocks"]["groups"][0]["blocks_per_request"] for one in (replay, per_token)
    )
    assert (kept, others) == (2, 1 + K)


@pytest.mark.promise("DFlash on a hybrid target: the text is that without a draft")
def test_replay_changes_no_text(hybrid_on_v2):
    assert_only_near_ties(hybrid_on_v2["plain"], hybrid_on_v2["replay"]["tokens"], "replay on V2")
