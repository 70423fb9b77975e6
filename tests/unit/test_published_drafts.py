"""docs/published_drafts.md is what the command writes."""

from __future__ import annotations

import pytest

from tests.published_drafts import find
from tests.support.published import published

pytestmark = pytest.mark.promise("the published drafts: a verdict for each")


@pytest.fixture(scope="module")
def found():
    return find(published())


def test_verdicts_are_those_of_the_fixtures(found):
    words = {"left": "passed through", "refused": "refused", "served": "served"}
    for one in found:
        assert one.verdict == words[one.draft.expect["verdict"]]
