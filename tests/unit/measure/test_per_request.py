"""Requests by their acceptance length, in bins that a table has room for."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.measure.engine.load import spread_of


@pytest.mark.parametrize(
    ("k", "names"),
    [
        (1, ["1-2"]),
        (4, ["1-2", "2-3", "3-4", "4-5"]),
        (15, ["1-3", "3-5", "5-7", "7-9", "9-11", "11-13", "13-15", "15-17"]),
    ],
)
def test_bins(k, names):
    every = [[0] * place + [2] + [0] * (k - place) for place in range(k + 1)]
    bins = spread_of(every, k, [])["requests_by_length"]
    assert list(bins) == names
    assert sum(bins.values()) == k + 1
    assert bins[names[0]] == (2 if k in (1, 15) else 1)  # a bin holds its lower bound


def test_requests_without_drafts_are_left_out():
    assert spread_of([[0, 0], [1, 3]], 1, ["none", "all"]) == {
        "requests_by_length": {"1-2": 1}, "length_by_category": {"all": 1.75}
    }  # fmt: skip


def test_each_request_has_its_category():
    """One answer less would shift all categories after it."""
    with pytest.raises(ValueError, match="shorter|longer"):
        spread_of([[1, 0]], 1, ["code", "text"])
