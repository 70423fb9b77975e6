"""Step times of `benchmarks.draft_window`, whose processor changes its speed from engine to engine."""

from __future__ import annotations

from benchmarks.draft_window import at_usual_speed


def test_times_are_told_at_one_speed():
    """An engine in whose time a piece of work took twice as long was not slower for it."""
    fast, slow = {"ms": 10.0, "piece_ms": 1.0}, {"ms": 16.0, "piece_ms": 2.0}
    found = {"full": {"100": fast}, "64": {"100": slow}}
    at_usual_speed(found)
    assert [cells["100"]["ms"] for cells in found.values()] == [15.0, 12.0]
