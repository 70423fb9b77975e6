"""docs/published_drafts.md and its short form in the README are what the command writes."""

from __future__ import annotations

import pytest

from tests.published_drafts import PAGE, SECTIONS, find, known, of_section, page, short, written_short
from tests.support.published import published


@pytest.fixture(scope="module")
def found():
    return find(published())


def test_the_page(found):
    assert PAGE.read_text(encoding="utf-8") == page(found)


def test_the_readme_s_short_form(found):
    assert written_short() == short(found)


def test_verdicts_are_those_of_the_fixtures(found):
    words = {"left": "passed through", "refused": "refused", "served": "served"}
    for one in found:
        assert words[one.draft.expect["verdict"]] == one.row[4]


def test_every_repository_is_named_once(found):
    """What is left out is derived from another fixture, or written to be refused."""
    sections = [of_section(found, pattern) for _, pattern in SECTIONS.values()]
    shown = [one.draft.slug for section in sections for one in section]
    assert len(shown) == len(set(shown))
    left_out = {one.draft.slug for one in found} - set(shown)
    assert {slug for slug in left_out if not slug.startswith(("ids_", "d2t_"))} == {
        "angelslim_own_layers", "nested_ids_like_the_default", "specdrift_gpt_oss_120b_top_level",
        "specforge_norm_output_alone", "specforge_qwen3_8b_p_eagle_mask_token",
    }  # fmt: skip


def test_it_says_how_surely_each_is_known(found):
    assert all(known(one.draft) for one in found)


def test_a_folder_of_a_repository_is_named_as_it_is_asked_for(found):
    assert "`baichuan-inc/Baichuan-M3-235B/draft`" in page(found)
    assert "baichuan-inc/Baichuan-M3-235B/draft" in short(found)
