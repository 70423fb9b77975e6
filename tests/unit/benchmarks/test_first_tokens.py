"""Figures of the first tokens beside a window: how they are summed up, and that the page shows them."""

from __future__ import annotations

import pytest

from benchmarks import first_tokens


def test_the_page_shows_the_committed_figures():
    page = first_tokens.PAGE.read_text()
    table = first_tokens.page_table()
    assert first_tokens.filled(page, {"first": table}) == page
    assert first_tokens.filled(page, {"first": table + "more"}) != page


def test_gains_are_those_of_the_same_texts():
    """Texts differ by far more than what a few tokens change in each."""
    found = {"full": [1.0, 3.0], "64+0": [1.0, 3.0], "64+4": [1.1, 3.3]}
    told = first_tokens.summary(found)
    assert told["64+4"]["gain"] == pytest.approx(0.2)
    assert told["64+4"]["error"] == pytest.approx(0.1)
    assert told["full"].keys() == told["64+0"].keys() == {"length", "texts"}


def test_views():
    assert first_tokens.views_of([64], [0, 4]) == {"full": (None, 0), "64+0": (64, 0), "64+4": (64, 4)}
