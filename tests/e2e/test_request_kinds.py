"""What a request asks for is what it gets: as without drafts, for every kind of request, all at once.

The post-norm pair in float32, with its own drafts and with those of an oracle, so that texts
end within accepted drafts. No near-ties there: every greedy text must be equal.
"""

from __future__ import annotations

import json

import pytest

from tests.support.dense import K
from tests.support.engine import TINY
from tests.support.kinds import (
    BUDGETS,
    THINKS,
    Answer,
    DraftedEngine,
    KindsRun,
    accepted,
    ends_within_a_draft,
    run_kinds,
)

pytestmark = [pytest.mark.e2e, pytest.mark.full]

EOS = "("
DRAFT = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": K}
ENDS = [
    "greedy", "eos", "max_tokens=1", "max_tokens=2", "max_tokens=3", "stop_token_ids", "min_tokens",
    "stop", "stop, kept", "logprobs", "json",
]  # fmt: skip
ACTING = [
    "presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words", "allowed_token_ids",
]  # fmt: skip
ENGINES = [
    DraftedEngine("own drafts", DRAFT),
    DraftedEngine("oracle drafts", DRAFT, right="always", kinds=ENDS),
]
NAMES = [engine.name for engine in ENGINES]
THINKING = [f"{THINKS}={budget}" for budget in BUDGETS]
DEFAULTS = "default sampling of one token"  # which leaves nothing to chance
GREEDY = [("own drafts", kind) for kind in [*ENDS, *ACTING, *THINKING, DEFAULTS, "prompt_logprobs"]]
GREEDY += [("oracle drafts", kind) for kind in ENDS]
LOGPROB_ERROR = 1e-3  # float32, batches of other shapes


@pytest.fixture(scope="module")
def kinds(prompts):
    some = [prompt[:64] for prompt in prompts[:8]]
    run = KindsRun(TINY / "target", some, ENGINES, EOS, engine_args={"dtype": "float32"})
    return run_kinds(run)


def answers(kinds, engine, kind):
    return [a for name, a in kinds[engine]["answers"].items() if name.rpartition(" ")[0] == kind]


def texts(kinds, engine, kind):
    return [text for answer in answers(kinds, engine, kind) for text in answer["texts"]]


def without_logprobs(text):
    return {key: value for key, value in text.items() if key != "logprobs"}


@pytest.mark.parametrize(("engine", "kind"), GREEDY)
def test_answer_is_that_without_drafts(kinds, engine, kind):
    """Tokens, text, and why it ended."""
    plain, drafted = (texts(kinds, name, kind) for name in ("plain", engine))
    assert plain
    assert [without_logprobs(t) for t in drafted] == [without_logprobs(t) for t in plain]


@pytest.mark.parametrize("kind", ["eos", "stop_token_ids", "stop", "max_tokens=2", "max_tokens=3"])
def test_texts_end_within_accepted_drafts(kinds, kind):
    """Nothing of the draft behind the end is said: the answers are those without drafts."""
    ended = [
        ends_within_a_draft(answer["drafts"], text["tokens"])
        for answer in answers(kinds, "oracle drafts", kind)
        for text in answer["texts"]
        if text["finish"] == ("length" if "max_tokens" in kind else "stop")
    ]
    print(f"\n{kind}: {sum(ended)} of {len(ended)}")
    assert sum(ended) >= 2


@pytest.mark.parametrize("kind", ACTING)
def test_setting_acts(kinds, kind):
    """Or equality with the texts without drafts would say nothing."""
    greedy, changed = (texts(kinds, "own drafts", name) for name in ("greedy", kind))
    different = sum(a["tokens"] != b["tokens"] for a, b in zip(greedy, changed, strict=True))
    print(f"\n{kind}: {different} of {len(greedy)} texts are others than without it")
    assert different >= len(greedy) / 2


@pytest.mark.parametrize("budget", BUDGETS)
def test_thinking_ends_with_its_budget(kinds, budget):
    """Whatever requests are beside. vLLM counts one token more, without a draft too."""
    end = kinds["end of thinking"]
    rows = [text["tokens"] for text in texts(kinds, "own drafts", f"{THINKS}={budget}")]
    assert len(rows) == 8
    for tokens in rows:
        ends = [i for i in range(budget + 2) if tokens[i : i + len(end)] == end]
        assert ends, tokens


def test_default_sampling_is_the_targets(kinds):
    """Its texts are not the greedy ones: generation_config.json was read."""
    greedy, sampled = (texts(kinds, "own drafts", kind) for kind in ("greedy", "default sampling"))
    assert [text["tokens"] for text in greedy] != [text["tokens"] for text in sampled]
    assert {len(text["tokens"]) for text in sampled} == {48}


@pytest.mark.parametrize("engine", NAMES)
def test_logprobs_are_those_without_drafts(kinds, engine):
    """One entry for each token, which is in it, and the same likeliest tokens."""
    worst = 0.0
    for plain, drafted in zip(*(texts(kinds, e, "logprobs") for e in ("plain", engine)), strict=True):
        assert len(drafted["logprobs"]) == len(drafted["tokens"])
        entries = zip(drafted["tokens"], plain["logprobs"], drafted["logprobs"], strict=True)
        for token, left, right in entries:
            assert str(token) in right
            assert left.keys() == right.keys()
            worst = max(worst, *(abs(left[key] - right[key]) for key in left))
    print(f"\n{engine}: logprobs differ by up to {worst:.2g}")
    assert worst < LOGPROB_ERROR


def test_logprobs_of_prompts_are_those_without_drafts(kinds):
    pairs = zip(*(answers(kinds, e, "prompt_logprobs") for e in ("plain", "own drafts")), strict=True)
    for plain, drafted in pairs:
        assert plain["prompt_logprobs"]
        for left, right in zip(plain["prompt_logprobs"], drafted["prompt_logprobs"], strict=True):
            assert left == pytest.approx(right, abs=LOGPROB_ERROR)


@pytest.mark.parametrize("engine", NAMES)
def test_json_fits_its_schema(kinds, engine):
    jsons = texts(kinds, engine, "json")
    print(f"\n{engine}: {jsons[0]['text']}")
    for text in jsons:
        assert text["finish"] == "stop"
        answer = Answer.model_validate(json.loads(text["text"].removesuffix(EOS)))
        assert set(answer.parts) <= {"class", "def", "import"}


def test_several_texts_of_a_prompt(kinds):
    """Only sampled ones: vLLM refuses n > 1 of a greedy request."""
    for answer in answers(kinds, "own drafts", "n=3, sampled"):
        assert len({tuple(text["tokens"]) for text in answer["texts"]}) == 3


def test_a_seed_repeats_a_text(kinds):
    """Among other requests and alone; drafts are greedy."""
    first = texts(kinds, "own drafts", "seed")
    again = [text for answer in kinds["own drafts"]["again"].values() for text in answer["texts"]]
    assert [t["tokens"] for t in again] == [t["tokens"] for t in first]


@pytest.mark.parametrize("engine", NAMES)
def test_what_vllm_has_not_with_drafts_is_refused(kinds, engine):
    """By vLLM, as a fault of the request: the engine goes on."""
    refused = kinds[engine]["refused"]
    assert set(refused) == {"min_p", "logit_bias"}
    for said in refused.values():
        assert "not yet supported with speculative decoding" in said
    assert kinds["plain"]["refused"] == {}


@pytest.mark.parametrize("engine", NAMES)
def test_aborted_requests_leave_others_and_nothing_else(kinds, engine):
    """Three of eight end after a few steps. One block is vLLM's null block."""
    plain, drafted = (kinds[name]["aborts"]["finished"] for name in ("plain", engine))
    assert set(drafted) == {"0", "2", "3", "5", "7"}
    assert drafted == {number: plain[number] for number in drafted}
    assert kinds[engine]["aborts"]["blocks_taken"] == 1


@pytest.mark.parametrize(("engine", "least"), [("own drafts", 0.3), ("oracle drafts", 0.95)])
def test_drafts_were_accepted(kinds, engine, least):
    counts = [
        count
        for answer in answers(kinds, engine, "greedy")
        for count in accepted(answer["drafts"], answer["texts"][0]["tokens"])[:-1]
    ]
    share = sum(counts) / (K * len(counts))
    print(f"\n{engine}: {share:.2f} of {K * len(counts)} drafted tokens accepted")
    assert share > least
