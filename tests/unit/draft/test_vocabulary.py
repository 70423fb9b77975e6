"""Offsets or target ids: what a d2t is, for any map and for what is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vllm_eagle_ext.draft.vocabulary import map_kind, target_ids

V = 40

MAPS = st.lists(st.integers(0, V - 1), min_size=2, unique=True).map(sorted)
SHUFFLED = st.lists(st.integers(0, V - 1), min_size=2, unique=True)
INTEGERS = st.lists(st.integers())
properties = settings(max_examples=100, deadline=None)


def offsets(ids: list[int]) -> list[int]:
    return [target_id - draft_id for draft_id, target_id in enumerate(ids)]


def ascends_within(ids: list[int]) -> bool:
    return bool(ids) and all(a < b for a, b in pairwise(ids)) and ids[0] >= 0 and ids[-1] < V


@pytest.mark.parametrize(
    ("d2t", "kept", "kind"),
    [
        pytest.param([0, 0, 0], None, "offset", id="first_tokens"),
        pytest.param([3, 3, 5], None, "offset", id="offsets"),
        pytest.param([3, 5, 39], None, "absolute", id="too_large_for_offsets"),
        pytest.param([3, 5, 9], None, "offset", id="both_without_t2d"),
        pytest.param([3, 5, 9], [3, 6, 11], "offset", id="both_t2d_says_offsets"),
        pytest.param([3, 5, 9], [3, 5, 9], "absolute", id="both_t2d_says_ids"),
        pytest.param([3, 5, 9], [0, 1, 2], "offset", id="both_t2d_says_neither"),
        pytest.param([7], None, "offset", id="one_token"),
        pytest.param([], None, None, id="empty"),
        pytest.param([0, -1], None, None, id="repeated"),
        pytest.param([-1, 0], None, None, id="negative"),
        pytest.param([38, 38, 38], None, None, id="beyond_v"),
        pytest.param([5, 2, 2], None, "offset", id="by_frequency"),
        pytest.param([9, 3, 5], None, "offset", id="by_frequency_both_without_t2d"),
        pytest.param([9, 3, 5], [3, 5, 9], "absolute", id="by_frequency_t2d_says_ids"),
        pytest.param([9, 3, 5], [4, 7, 9], "offset", id="by_frequency_t2d_says_offsets"),
        pytest.param([2, 1, 3], None, "absolute", id="by_frequency_repeated_as_offsets"),
        pytest.param([39, 3, 38], None, "absolute", id="by_frequency_too_large_for_offsets"),
        pytest.param([5, 2, 39], None, "absolute", id="beyond_v_as_offsets"),
    ],
)
def test_kind(d2t, kept, kind):
    assert map_kind(d2t, V, kept) == kind


@properties
@given(MAPS, st.booleans())
def test_offsets_of_a_map(ids, with_t2d):
    assert map_kind(offsets(ids), V, ids if with_t2d else None) == "offset"
    assert target_ids(offsets(ids), "offset") == ids


@properties
@given(MAPS)
def test_target_ids_without_t2d_are_offsets_only_where_they_can_be(ids):
    assert map_kind(ids, V) == ("offset" if ascends_within(target_ids(ids, "offset")) else "absolute")


@properties
@given(SHUFFLED)
def test_ids_in_any_order_with_their_t2d(ids):
    assert map_kind(offsets(ids), V, sorted(ids)) == "offset"
    assert map_kind(ids, V, sorted(ids)) == "absolute"


@properties
@given(SHUFFLED)
def test_ids_in_any_order_without_t2d_are_a_map(ids):
    """Ascending readings come first."""
    for d2t in (offsets(ids), ids):
        read = target_ids(d2t, map_kind(d2t, V))
        readings = [target_ids(d2t, kind) for kind in ("offset", "absolute")]
        assert ascends_within(read) or not any(map(ascends_within, readings))


@properties
@given(INTEGERS, st.integers(1, 2**40), st.none() | INTEGERS)
@example([], 1, [])
def test_any_integers_are_taken_or_refused(d2t, size, kept):
    kind = map_kind(d2t, size, kept)
    if kind is None:
        return
    ids = target_ids(d2t, kind)
    assert len(set(ids)) == len(ids)
    assert 0 <= min(ids) <= max(ids) < size


@properties
@given(MAPS, st.lists(st.integers(0, V - 1), unique=True).map(sorted))
def test_t2d_only_ever_chooses_between_maps(ids, kept):
    assume(kept not in (ids, target_ids(ids, "offset")))
    assert map_kind(ids, V, kept) == map_kind(ids, V)
