"""docs/published_drafts.md is what the command writes."""

from __future__ import annotations

import pytest

from tests.published_drafts import PAGE, find, known, page
from tests.support.published import published

pytestmark = pytest.mark.promise("the published drafts: a verdict for each")


@pytest.fixture(scope="module")
def found():
    return find(published())


def test_the_page(found):
    assert PAGE.read_text(encoding="utf-8") == page(found)


def test_verdicts_are_those_of_the_fixtures(found):
    words = {"left": "passed through", "refused": "refused", "served": "served"}
    for one in found:
        assert one.verdict == words[one.draft.expect["verdict"]]


def test_it_says_how_surely_each_is_known(found):
    assert all(known(one.draft) for one in found)
