from __future__ import annotations

import pytest
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from vllm_eagle_ext.draft_length.menu import complete_menu, menu_of, schedule_of


@pytest.mark.parametrize(
    ("k", "menu"), [(1, (0, 1)), (2, (0, 1, 2)), (3, (0, 1, 3)), (4, (0, 1, 2, 4)), (15, (0, 1, 7, 15))]
)
def test_the_default(k, menu):
    assert complete_menu(None, k) == menu


def test_repetitions_and_order_do_not_matter():
    assert complete_menu([4, 0, 2, 2], 4) == (0, 2, 4)


@pytest.mark.parametrize("asked", [[], [0, 5], [0, 2], [4], [-1, 4]])
def test_refused(asked):
    with pytest.raises(ValueError, match="4"):
        complete_menu(asked, 4)


@pytest.mark.parametrize("menu", [(0, 4), (0, 1, 2, 4), (1, 3, 7)])
def test_vllm_finds_each_length_in_the_schedule(menu):
    """It captures a graph for each that its own lookup holds."""
    lookup = build_dynamic_sd_schedule_lookup(schedule_of(menu), 64, max(menu))
    assert set(lookup[1:]) == set(menu) == set(menu_of(schedule_of(menu)))
    assert lookup[len(menu) :] == [max(menu)] * (65 - len(menu))
