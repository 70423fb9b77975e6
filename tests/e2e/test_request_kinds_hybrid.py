"""Requests of every kind on a hybrid target with replay, whose state a wrong end or cut would spoil.

With its DFlash draft, and with those of an oracle. The target runs in bf16, so that texts may
diverge at near-ties; log-probabilities are those after penalties.
"""

from __future__ import annotations

import pytest

from tests.support.engine import TINY
from tests.support.hybrid import TARGET
from tests.support.kinds import (
    BUDGETS,
    THINKS,
    DraftedEngine,
    KindsRun,
    ends_within_a_draft,
    run_kinds,
)
from tests.support.near_ties import NEAR_TIE_GAP

pytestmark = [pytest.mark.e2e, pytest.mark.long]

K = 7
EOS = "("
DFLASH = {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": K}
ENGINES = [
    DraftedEngine("DFlash", DFLASH),
    DraftedEngine("oracle drafts", DFLASH, right="always"),
]
NAMES = [engine.name for engine in ENGINES]
GREEDY = [
    "greedy", "eos", "max_tokens=1", "max_tokens=2", "max_tokens=3", "stop_token_ids", "min_tokens",
    "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "json",
    *(f"{THINKS}={budget}" for budget in BUDGETS),
]  # fmt: skip


@pytest.fixture(scope="module")
def kinds(prompts):
    run = KindsRun(
        TARGET,
        [prompt[:64] for prompt in prompts[:8]],
        ENGINES,
        EOS,
        kinds=[*GREEDY, "sampled", "default sampling"],
        logprobs=5,
        engine_args={"logprobs_mode": "processed_logprobs"},
    )
    return run_kinds(run)


def pairs(kinds, engine, kind):
    """Texts without drafts and with."""
    for name, plain in kinds["plain"]["answers"].items():
        if name.rpartition(" ")[0] == kind:
            drafted = kinds[engine]["answers"][name]
            yield from zip(plain["texts"], drafted["texts"], strict=True)


def gap_at_divergence(plain, drafted) -> float | None:
    """How far apart the plain run saw two tokens where the texts diverge; None: they do not."""
    for i, (left, right) in enumerate(zip(plain["tokens"], drafted["tokens"], strict=False)):
        if left != right:
            seen = plain["logprobs"][i]
            return seen[str(left)] - seen.get(str(right), float("-inf"))
    return None


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("kind", GREEDY)
def test_answer_is_that_without_drafts(kinds, engine, kind):
    """Tokens, text, and why it ended, up to near-ties."""
    gaps, count = [], 0
    for plain, drafted in pairs(kinds, engine, kind):
        count += 1
        gap = gap_at_divergence(plain, drafted)
        if gap is None:
            for key in ("tokens", "text", "finish", "stop"):
                assert drafted[key] == plain[key]
        else:
            gaps.append(gap)
    print(f"\n{kind}, {engine}: {len(gaps)} of {count} texts diverge, near-tie gaps {sorted(gaps)}")
    assert count >= 8
    assert max(gaps, default=0) <= NEAR_TIE_GAP


@pytest.mark.parametrize("engine", NAMES)
def test_most_answers_are_equal(kinds, engine):
    """The same few texts diverge in many kinds: with AMX three of the eight, at gaps up to 0.0625."""
    gaps = [gap_at_divergence(*pair) for kind in GREEDY for pair in pairs(kinds, engine, kind)]
    equal = gaps.count(None) / len(gaps)
    print(f"\n{engine}: {equal:.2f} of {len(gaps)} answers are equal")
    assert equal > 0.5


@pytest.mark.parametrize("kind", ["eos", "stop_token_ids", "stop", "max_tokens=2", "max_tokens=3"])
def test_texts_end_within_accepted_drafts(kinds, kind):
    ended = [
        ends_within_a_draft(answer["drafts"], text["tokens"])
        for name, answer in kinds["oracle drafts"]["answers"].items()
        if name.rpartition(" ")[0] == kind
        for text in answer["texts"]
        if text["finish"] == ("length" if "max_tokens" in kind else "stop")
    ]
    print(f"\n{kind}: {sum(ended)} of {len(ended)}")
    assert sum(ended) >= 2


@pytest.mark.parametrize("engine", NAMES)
def test_aborted_requests_leave_nothing_behind(kinds, engine):
    aborts = kinds[engine]["aborts"]
    assert set(aborts["finished"]) == {"0", "2", "3", "5", "7"}
    assert aborts["blocks_taken"] == 1  # vLLM's null block
