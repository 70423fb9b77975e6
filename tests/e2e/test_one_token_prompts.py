"""Prompts of one token that join running requests, on a target with recurrent states.

vLLM's own scheduler adds placeholder drafts to such a prompt (docs/dev/vllm_faults/one_token_prompt.py).
The control names that scheduler, which the package then leaves in place, and gets wrong texts.
"""

from __future__ import annotations

import pytest

from tests.support.batches import Batch, Engine, run_engines
from tests.support.hybrid import TARGET, dflash
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps

pytestmark = pytest.mark.e2e

K = 7
ONE_TOKEN = [[5], [77], [401]]
RUNNERS = [
    pytest.param("v1", marks=pytest.mark.full),
    pytest.param("v2", marks=[pytest.mark.v2, pytest.mark.long]),
]
ASYNC, SYNC = {"async_scheduling": True}, {"async_scheduling": False}
VLLMS = ASYNC | {"scheduler_cls": "vllm.v1.core.sched.async_scheduler.AsyncScheduler"}
SERVED = {"replay": ASYNC, "per_token": SYNC}


def batches(long, count) -> list[Batch]:
    """Alone; over blocks that hold other requests' states; and next to a long request."""
    ask = {"max_tokens": count, "logprobs": 5}
    joined = [long, *ONE_TOKEN]
    return [
        Batch("alone", ONE_TOKEN, concurrency=1, **ask),
        Batch("others", [long[i:] for i in range(4)], max_tokens=4),
        Batch("again", ONE_TOKEN, concurrency=1, **ask),
        Batch("joined", joined, max_tokens=[2 * count, *[count] * 3], joins=[0, 3, 5, 7]),
    ]


def engine(name, texts, **changed) -> Engine:
    state = name if name in SERVED else "replay"
    args = {"max_num_seqs": 8, **changed}
    return Engine(name, texts, dflash(K), args, {"hybrid_state": state}, TARGET)


def gaps(result, name) -> list[float]:
    """Per text that is not the one of the prompt alone: how far apart the tokens are where they part."""
    alone, joined = result["alone"], result[name]["tokens"]
    return near_tie_gaps(alone["tokens"], alone["logprobs"], joined[-len(ONE_TOKEN) :])


@pytest.fixture(scope="module", params=RUNNERS)
def runs(request, prompts):
    """V2 runs under Triton's interpreter, and is asked for few tokens."""
    is_v1 = request.param == "v1"
    texts = batches(prompts[0][:24], 24 if is_v1 else 6)
    served = [engine(name, texts, **args) for name, args in SERVED.items()]
    return run_engines([*served, engine("vllm's", texts, **VLLMS)], request.param)


@pytest.mark.parametrize("name", SERVED)
def test_the_text_is_that_of_the_prompt_alone(runs, name):
    result = runs[name]
    for batch in ("again", "joined"):
        assert max(gaps(result, batch), default=0) <= NEAR_TIE_GAP
    assert result["joined"]["counters"]["spec_decode_num_drafts"] > 0


def test_no_prompt_has_placeholders(runs):
    """Whose first step verifies nothing; the long request verifies drafts next to it."""
    for name, padded in {"replay": 0, "per_token": 0, "vllm's": K}.items():
        first: dict[str, int] = {}
        steps = runs[name]["joined"]["steps"]
        for step in steps:
            first = step["verified"] | first
        in_order = [first[request] for request in sorted(first, key=lambda r: int(r.split("-")[0]))]
        assert in_order == [0, padded, padded, padded], name
        assert all(step["k"] == K for step in steps)


def test_vllms_scheduler_gives_another_text(runs):
    result = runs["vllm's"]
    assert max(gaps(result, "again"), default=0) <= NEAR_TIE_GAP
    assert max(gaps(result, "joined")) > 10 * NEAR_TIE_GAP
