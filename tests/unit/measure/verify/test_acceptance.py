"""Engine and reference step by step, and whether drafting is worth it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.unit.measure.verify.toy import histogram
from vllm_eagle_ext.measure.engine.load import Answer, Measured
from vllm_eagle_ext.measure.verify.acceptance import (
    BOUND,
    Paired,
    drafted_steps,
    judge_reference,
    judge_worth,
    undrafted,
)
from vllm_eagle_ext.measure.verify.request import Verdict

K = 3


def answer(steps: list[int], prompt: int = 4) -> Answer:
    return Answer(prompt, list(range(sum(steps))), steps, 1.0)


@pytest.mark.parametrize(
    ("steps", "drafted"),
    [
        ([1, 4, 1, 2, 2], [(3, 3), (7, 0), (8, 1)]),  # the last step's drafts reach beyond the text
        ([1], []),
        ([1, K + 1, K + 1], [(3, K), (7, K)]),
        # Cut at 64 tokens, a perfect draft's last step shows K of its K + 1: no rejection.
        ([1, *[K + 1] * 15, K], [(3 + (K + 1) * step, K) for step in range(15)]),
    ],
    ids=str,
)
def test_steps_are_walked_from_row_to_row(steps, drafted):
    """Row P predicts the token at P + 2: the first draft starts at the prompt's last row."""
    assert list(drafted_steps([9] * 4, answer(steps), K)) == drafted


def paired(engine: float, reference: float, *, count: int = 300, alike: float = 1.0) -> Paired:
    """Geometric acceptance; `alike` is the share of steps that are drawn together."""
    choose, pairs = random.Random(1), Paired(K)
    for _ in range(count):
        draws = [choose.random() for _ in range(K)]
        own = draws if choose.random() < alike else [choose.random() for _ in range(K)]
        pairs.add(length(draws, engine), length(own, reference))
    return pairs


def length(draws: list[float], rate: float) -> int:
    return next((at for at, draw in enumerate(draws) if draw >= rate), K)


def test_rates():
    pairs = Paired(2)
    for engine, reference in [(2, 2), (1, 0), (0, 0), (2, 1)]:
        pairs.add(engine, reference)
    assert pairs.engine == [0.75, 0.5]
    assert pairs.reference == [0.5, 0.25]
    assert pairs.differences == [0.25, 0.25]
    # Differences 0, 1, 0, 0: their mean's standard error is sqrt(3/16 / 4).
    assert pairs.bounds[0] == pytest.approx(4 * (3 / 64) ** 0.5)


@pytest.mark.parametrize(
    ("engine", "reference", "alike", "verdict"),
    [
        *((0.7, 0.7, alike, "passed") for alike in (1.0, 0.9, 0.5)),  # drafts that part at ties
        *((*rates, 1.0, "FAILED") for rates in ((0.4, 0.7), (0.7, 0.4), (0.62, 0.7), (0.0, 0.5))),
        (0.4, 0.7, 0.0, "FAILED"),
    ],
)
def test_drafts_are_compared(engine, reference, alike, verdict):
    drafts = paired(engine, reference, alike=alike)
    check = judge_reference(drafts)
    assert check.verdict.value == verdict
    assert ("beyond its bound at position 1" in check.said) == (verdict == "FAILED")
    assert alike < 1 or engine != reference or drafts.bounds == [BOUND] * K


@pytest.mark.parametrize(("share", "expected"), [(0.0, "passed"), (0.02, "passed"), (0.08, "warning")])
def test_other_tokens_of_equal_worth_are_a_warning(share, expected):
    """Drafts from other aux layers may be accepted as often, for other tokens."""
    pairs = Paired(K)
    for number in range(400):
        parts = number < share * 400
        pairs.add(1 + parts * (number % 2), 1 + parts * (1 - number % 2), clear=True)
    check = judge_reference(pairs, ["aux_layers"])
    assert check.verdict.value == expected
    assert ("drafts other tokens" in " ".join(check.details)) == (expected == "warning")
    assert f"{pairs.clear} diverge where" in check.said


def test_few_drafts_say_nothing():
    assert judge_reference(paired(0.0, 0.9, count=20)).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("engine", "reference", "expected"), [(0.7, 0.4, "warning"), (0.4, 0.7, "FAILED")]
)
def test_an_engine_that_accepts_more_with_options_is_a_warning(engine, reference, expected):
    """The options may be right and the file, which the reference reads, wrong."""
    check = judge_reference(paired(engine, reference), ["norm_output"])
    assert check.verdict.value == expected
    text = " ".join(check.details)
    assert "without norm_output" in text
    assert ("the file wrong" in text) == (expected == "warning")


def test_one_position_that_accepts_less_fails():
    pairs = Paired(K)
    for number in range(400):  # more drafts of one token, fewer of three
        pairs.add(1 if number < 300 else 0, K if number < 100 else 0)
    assert pairs.differences == [0.5, -0.25, -0.25]
    assert judge_reference(pairs, ["norm_output"]).verdict is Verdict.FAILED


def measured(rates: list[float], drafts: int = 200) -> Measured:
    counted = histogram(drafts, [round(rate * drafts) for rate in rates])
    return Measured(1.0, [replace(answer([1]), histogram=counted)])


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0.7, 0.35, 0.0], "passed"),
        ([0.34, 0.17, 0.0], "passed"),
        ([0.3, 0.06, 0.0], "warning"),  # of a tiny gated draft in the other layout
        ([0.2], "passed"),
        ([0.19, 0.19, 0.19], "warning"),
        ([0.0, 0.0, 0.0], "warning"),
    ],
)
def test_worth(rates, expected):
    check = judge_worth(measured(rates))
    assert check.verdict.value == expected
    assert check.figures["acceptance_length"] == pytest.approx(1 + sum(rates), abs=0.01)
    assert ("Likely causes" in " ".join(check.details)) == (expected == "warning")


def test_a_layout_comes_first_of_the_causes():
    other, gated = (judge_worth(measured([0.3, 0.06]), has_layouts=has).details for has in (False, True))
    assert ("--gate-layouts" in gated[1], gated[:1] + gated[2:]) == (True, other)


def of_texts(tokens: list[int], accepted: int, drafts: int) -> Measured:
    counted = histogram(drafts, [accepted])
    return Measured(1.0, [Answer(4, tokens, [1] * len(tokens), 1.0, histogram=counted)])


@pytest.mark.parametrize(
    ("accepted", "drafts", "expected"),
    [
        (0, 188, "FAILED"),
        (9, 188, "warning"),
        (5, 188, "warning"),
        (0, 40, "warning"),
        (1, 400, "FAILED"),
    ],
)
def test_less_than_the_commonest_token_fails(accepted, drafts, expected):
    """Of 0 in 188 the bound is 0.024."""
    check = judge_worth(of_texts([*range(20)] * 50, accepted, drafts), has_layouts=True)
    assert check.verdict.value == expected
    fails, said = expected == "FAILED", str(check.details)
    assert ("Below chance" in said, "--gate-layouts" in said) == (fails, not fails)


@pytest.mark.parametrize(("off", "named"), [(0, False), (1, True), (-1, True), (2, False)])
def test_a_map_that_is_off_by_one_is_named(off, named):
    tokens = [*range(100, 400, 5)] * 20  # no neighbours among them
    ids = [token + off for token in range(100, 400, 5)]
    check = judge_worth(of_texts(tokens, 30 if named else 150, 200), ids=ids)
    assert f"map has {0 if off else 100:.1f}% of the tokens" in str(check.details)
    assert (f"each target id {-off:+} it would have 100.0%" in str(check.details)) == named
    assert "Likely causes" not in str(check.details)
    assert check.verdict.value == ("warning" if named else "passed")


def test_a_map_of_frequent_tokens_that_is_off_by_one_is_named():
    """Of a large vocabulary such a map has far from all tokens, and its neighbours some too."""
    draws = torch.distributions.Categorical(1 / torch.arange(1, 100_001) ** 0.9).sample((20_000,))
    names = torch.randperm(100_000, generator=torch.Generator().manual_seed(1))
    tokens, kept = names[draws].tolist(), names[:8192].tolist()
    for off, verdict in ((0, "passed"), (1, "warning")):
        check = judge_worth(of_texts(tokens, 150, 200), ids=[token + off for token in kept])
        assert check.verdict.value == verdict
        assert ("the map is off by one" in str(check.details)) == bool(off)


def test_looping_texts_say_nothing_against_a_useful_draft():
    """A whole vocabulary has no map, and one token that fills a text says nothing of one."""
    check = judge_worth(of_texts([7] * 39 + [8], 180, 200))
    assert (check.verdict.value, "map" in str(check.details)) == ("passed", False)
    check = judge_worth(of_texts([5] * 380 + [6] * 20, 150, 200), ids=[6, 8])
    assert (check.verdict.value, "off by one" in str(check.details)) == ("passed", False)


@pytest.mark.parametrize("drafts", [0, 29])
def test_worth_of_few(drafts):
    assert judge_worth(measured([0.5], drafts)).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(("tokens", "expected"), [(3, "FAILED"), (2, "not applicable")])
def test_nothing_drafted(tokens, expected):
    """A text of two tokens may end before anything could be drafted for it."""
    check = judge_worth(Measured(1.0, [answer([1] * tokens)]))
    assert check.verdict.value == expected
    assert ("Nothing was drafted" in check.said) == (expected == "FAILED")


def test_steps_without_drafts_are_noticed():
    """An engine that does not draft in each step cannot be read by its steps."""
    each, three = (replace(answer([1, 2, 2, 2, 2]), histogram=[0, n, 0, 0]) for n in (4, 3))
    assert undrafted(Measured(1.0, [each] * 10)) is None
    assert "and 30 of them verified" in undrafted(Measured(1.0, [three] * 10))


def test_requests_and_categories_are_told_apart():
    """Of three requests one accepts nothing, one two of each three, one all."""
    counted = ([20, 0, 0, 0], [0, 0, 20, 0], [0, 0, 0, 20])
    answers = [replace(answer([1]), histogram=hist) for hist in counted]
    check = judge_worth(Measured(1.0, answers), ["code", "text", "text"])
    assert check.figures["requests_by_length"] == {"1-2": 1, "2-3": 0, "3-4": 2}
    assert check.figures["length_by_category"] == {"code": 1.0, "text": 3.5}
    assert check.details == (
        "requests by length: 1-2 1, 2-3 0, 3-4 2", "length by category: code 1, text 3.5"
    )  # fmt: skip
    assert "length_by_category" not in str(judge_worth(Measured(1.0, answers)).details)
