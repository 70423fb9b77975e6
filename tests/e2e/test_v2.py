"""EAGLE-3 drafts on the V2 runner, under Triton's interpreter: the smallest engines that show each kind.

CI runs it with vLLM 0.33's Python, next to test_v2_hybrid.py.
"""

from __future__ import annotations

import pytest

from tests.support.batches import eagle3
from tests.support.dense import FLOAT32, NATIVE_AUX_LAYERS, POSTNORM_AUX_LAYERS, dense
from tests.support.engine import EngineFailedError
from tests.support.hybrid import started, with_log
from tests.support.replay import compare

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

K = 3
TOKENS = 10
LAYERS = {"postnorm": POSTNORM_AUX_LAYERS, "native": NATIVE_AUX_LAYERS, "gated": POSTNORM_AUX_LAYERS}


@pytest.fixture(scope="module")
def on_v2(prompts):
    """Engines without a draft and with each, in one process."""
    few = {"prompts": prompts[:2], "max_tokens": TOKENS, "engine_args": FLOAT32}
    drafts = [dense(name, name, speculative=eagle3(name, K), **few) for name in LAYERS]
    return with_log([dense("plain", **few), *drafts], "v2")


@pytest.mark.parametrize("name", LAYERS)
def test_a_text_is_that_without_a_draft(on_v2, name):
    results, log = on_v2
    assert results[name]["tokens"] == results["plain"]["tokens"]
    assert results[name]["counters"]["spec_decode_num_accepted_tokens"] > 0
    assert log.count("Drafting is on: 3 tokens per step") == len(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_drafts_are_those_of_the_reference(on_v2, target, prompts, request, name):
    (worker,) = on_v2[0][name]["workers"]
    assert worker["layer_ids"] == list(LAYERS[name])
    reference = request.getfixturevalue(f"{name}_reference")
    tally = compare(on_v2[0][name], target, reference, LAYERS[name], prompts[:2], K)
    assert tally.drafts >= 4
    assert min(tally.equal_share) == 1


def test_the_log_says_once_what_is_read(on_v2):
    lines = [line for line in on_v2[1].splitlines() if "the inputs of target layers" in line]
    assert len(lines) == len(LAYERS)
    for words in (
        "[2, 4, 6, 8, 10] of 12",
        "the input of layer id + 1",
        "Eagle3EagleExtLlamaForCausalLM",
    ):
        assert words in lines[0]


def test_a_start_that_cannot_be_served_is_refused(prompts):
    with pytest.raises(EngineFailedError, match=r"hybrid_state is 'replay'\. Allowed: 'auto'"):
        started([dense("refused", "native", prompts=prompts[:1], state="replay")], "v2")
