"""One line when drafting turns off or on for a load; the last one is what holds."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.draft_length.controller import Change, Figure
from vllm_eagle_ext.draft_length.switch_log import APART_S, SwitchLog

BUCKET, OTHER = (4, 6), (0, 3)
FIGURES = (
    Figure(length=0, seconds=0.0214, tokens=1.0),
    Figure(length=1, seconds=0.0381, tokens=1.41),
    Figure(length=4, seconds=None, tokens=2.0),
)
OFF = "Drafting is off for 16 to 31 requests with 4096 to 16383 tokens of context, before K=4."
ON = "Drafting is on, K=1, for 16 to 31 requests with 4096 to 16383 tokens of context, before K=0."


def off(bucket=BUCKET):
    return Change(before=4, after=0, bucket=bucket, figures=FIGURES)


def on(bucket=BUCKET):
    return Change(before=0, after=1, bucket=bucket, figures=FIGURES)


@pytest.fixture
def said(vllm_log):
    """Hand changes over and return what the log says of them, a step a second."""
    log = SwitchLog()

    def say(*changes, until=0.0, since=0.0):
        before = len(vllm_log.containing("Drafting is"))
        for change in changes:
            log.record(change)
        for second in range(int(since), int(until) + 1):
            log.speak(float(second))
        return [record.getMessage() for record in vllm_log.containing("Drafting is")[before:]]

    return say


def test_off_and_on_with_what_decided(said):
    (line,) = said(off())
    assert line == (
        f"{OFF} Decode steps: K=0: 21.4 ms, 1.00 tokens per request; K=1: 38.1 ms, 1.41 tokens per "
        "request; K=4: not timed, 2.00 tokens per request."
    )
    (line,) = said(on(), since=APART_S, until=APART_S)
    assert line.startswith(ON)


def test_what_is_held_back_is_said_once_a_minute_has_passed(said):
    assert len(said(off())) == 1
    assert said(on(), since=1, until=APART_S - 1) == []
    (line,) = said(since=APART_S, until=3 * APART_S)
    assert line.startswith(ON)


def test_what_did_not_last_is_not_said(said):
    assert len(said(off())) == 1
    assert said(on(), since=1, until=10) == []
    assert said(off(), since=11, until=3 * APART_S) == [], "it was the last word already"


def test_of_many_changes_the_last_is_said(said):
    assert len(said(off())) == 1
    assert said(on(), off(), on(), since=1, until=APART_S - 1) == []
    (line,) = said(since=APART_S, until=APART_S)
    assert line.startswith(ON)


def test_loads_do_not_wait_for_each_other(said):
    assert len(said(off(), off(OTHER))) == 2
    assert said(on(), on(OTHER), since=1, until=APART_S - 1) == []
    assert len(said(since=APART_S, until=APART_S)) == 2
