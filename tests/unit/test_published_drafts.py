"""docs/published_drafts.md is what the command writes."""

from __future__ import annotations

from operator import attrgetter

import pytest

from tests.published_drafts import PAGE, find, known, page
from tests.support.published import published

pytestmark = pytest.mark.promise("the published drafts: a verdict for each")


# Drafts that are well by themselves.
BY_THE_TARGET = {"specforge_longcat_flash"}


@pytest.fixture(scope="module")
def found():
    return find(published())


def test_the_page(found):
    assert PAGE.read_text(encoding="utf-8") == page(found)


def test_verdicts_are_those_of_the_fixtures(found):
    words = {"left": "passed through", "refused": "refused", "served": "served"}
    for one in found:
        expected = words[one.draft.expect["verdict"]]
        assert one.verdict == ("refused" if one.draft.slug in BY_THE_TARGET else expected)


def test_a_target_without_hidden_states_refuses_the_draft(found):
    rule = "target_hands_out_its_states"
    refused = {
        one.draft.slug for one in found if rule in map(attrgetter("rule"), one.result.inspection.errors)
    }
    assert refused == BY_THE_TARGET


def test_it_says_how_surely_each_is_known(found):
    assert all(known(one.draft) for one in found)
