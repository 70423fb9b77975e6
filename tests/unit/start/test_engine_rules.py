"""What every rule of the engine has: a name of its own, a word on the page, a test that fires it."""

from __future__ import annotations

from tests.support.engine import ROOT
from vllm_eagle_ext.start.rules import ENGINE_RULES, UNTESTED_RULES

NAMES = [rule.name for rule in (*ENGINE_RULES, *UNTESTED_RULES)]


def test_each_is_judged_once():
    assert len(NAMES) == len(set(NAMES))


def test_the_page_names_each():
    page = (ROOT / "docs/drafts.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []
