"""Acceptance over reached positions, discounted."""

from __future__ import annotations

import random

import pytest

from vllm_eagle_ext.draft_length.position_acceptance import FOLD_AFTER, FOLD_EVERY, PositionAcceptance

RATES = (0.8, 0.7, 0.6, 0.5)  # conditional


def draw_accepted(drafted, rates, draw):
    accepted = 0
    while accepted < drafted and draw.random() < rates[accepted]:
        accepted += 1
    return accepted


def filled(length, steps, rates=RATES, *, into=None, seed=0, requests=16):
    draw = random.Random(seed)
    found = into or PositionAcceptance((0, 1, 2, 4))
    for _ in range(steps):
        found.observe(length, [(length, draw_accepted(length, rates, draw)) for _ in range(requests)])
    return found


def test_rates_are_conditional_and_tokens_their_products():
    found = filled(4, 400)
    assert found.rates(4) == pytest.approx(RATES, abs=0.08)
    expected = 1 + 0.8 + 0.8 * 0.7 + 0.8 * 0.7 * 0.6 + 0.8 * 0.7 * 0.6 * 0.5
    assert found.tokens(4) == pytest.approx(expected, abs=0.15)
    assert found.tokens(0) == 1.0


def test_long_drafts_tell_of_short_ones():
    assert filled(4, 400).tokens(2) == pytest.approx(1 + 0.8 + 0.56, abs=0.1)


def test_a_short_draft_says_nothing_of_positions_behind_it():
    found = filled(4, 400)
    before = found.rates(4)
    filled(1, 8 * FOLD_EVERY, (0.1,), into=found)
    after = found.rates(4)
    assert after[0] < before[0] - 0.05
    assert after[1:] == pytest.approx(before[1:], abs=0.01)


def test_nor_do_many_short_ones_make_it_forget_them():
    found = filled(4, 400, (0.9, 0.9, 0.1, 0.1))
    filled(2, 2000, (0.9, 0.9), into=found)
    assert found.rates(4)[2] == pytest.approx(0.1, abs=0.08)


def test_the_drafts_of_a_probe_count_behind_many_short_ones():
    found = filled(4, 400, (0.9, 0.9, 0.1, 0.1))
    filled(2, 2000, (0.9, 0.9), into=found)
    filled(4, FOLD_EVERY, (1.0,) * 4, into=found, requests=3)
    assert found.rates(4)[2] > 0.5


def test_a_single_draft_does_not_outweigh_what_was_known():
    found = filled(4, 400, (0.9, 0.9, 0.1, 0.1))
    filled(2, 2000, (0.9, 0.9), into=found)
    found.observe(4, [(4, 4)])
    filled(2, FOLD_EVERY - 1, (0.9, 0.9), into=found)
    assert found.rates(4)[2] < 0.25


def test_drafts_that_are_rejected_early_leave_the_positions_behind_as_they_were():
    """They are long enough: nothing is known less well for it."""
    found = filled(4, 400, (0.9, 0.9, 0.1, 0.1))
    filled(4, 2000, (0.0,) * 4, into=found, requests=1)
    filled(4, FOLD_EVERY, (1.0,) * 4, into=found, requests=3)
    assert found.rates(4)[2] < 0.3


def test_drafts_that_draft_otherwise_where_they_are_shorter():
    """A parallel drafter's first position may be worse with fewer positions behind it."""
    found = filled(4, 200)
    for turn in range(40):
        filled(1, 4, (0.5,), into=found, seed=turn)
        filled(4, 4, into=found, seed=turn)
    assert found.rates(1)[0] < found.rates(4)[0] - 0.15


@pytest.mark.parametrize("requests", [1, 32])
def test_old_texts_are_forgotten(requests):
    found = filled(4, 600, requests=requests)
    filled(4, 1200 if requests == 1 else 150, (0.1,) * 4, into=found, requests=requests)
    assert found.rates(4)[0] == pytest.approx(0.1, abs=0.08)


def test_nothing_seen_is_even_odds():
    assert PositionAcceptance((0, 2)).rates(2) == [0.5, 0.5]


def test_drafts_longer_than_the_menu_are_cut():
    found = PositionAcceptance((0, 2))
    for _ in range(FOLD_EVERY):
        found.observe(5, [(5, 5)])
    assert found.rates(2)[0] > 0.9


def test_what_was_known_ages_while_nothing_is_drafted():
    """A probe of few drafts then tells what holds now, also of texts that were refused for long."""

    def after(rests):
        acceptance = PositionAcceptance([4])
        for _ in range(80):
            acceptance.observe(4, [(4, 0)] * 8)
        for _ in range(rests):
            acceptance.rest()
        for _ in range(6):
            acceptance.observe(4, [(4, 4)] * 8)
        for _ in range(FOLD_AFTER):
            acceptance.rest()
        return acceptance.tokens(4)

    assert after(0) < after(100) < after(400)
    assert after(0) < 2.0
    assert after(400) > 4.0


def test_the_drafts_of_a_probe_count_without_waiting_for_more():
    acceptance = PositionAcceptance([4])
    acceptance.observe(4, [(4, 4)] * 64)
    before = acceptance.tokens(4)
    for _ in range(FOLD_AFTER):
        acceptance.rest()
    assert acceptance.tokens(4) > before
