"""How long a bench will take."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import MadeUp
from vllm_eagle_ext.measure import announce
from vllm_eagle_ext.measure.announce import duration
from vllm_eagle_ext.measure.bench.estimate import (
    COMPILED_S,
    EAGER_S,
    TOKENS_PER_S,
    guessed_s,
    left_s,
)
from vllm_eagle_ext.measure.bench.request import BenchRequest
from vllm_eagle_ext.measure.bench.run import announced
from vllm_eagle_ext.measure.bench.schedule import outstanding


def turns(**changes):
    settings = MadeUp(**changes).settings()
    return settings, outstanding(settings, [], [])


def test_starts_and_tokens_count():
    settings, left = turns(repeats=1)
    texts_s = settings.num_prompts * settings.max_tokens / TOKENS_PER_S
    assert guessed_s(settings, left) == pytest.approx(3 * (COMPILED_S + texts_s))
    eager = settings.model_copy(update={"engine": {"enforce_eager": True}})
    assert guessed_s(eager, left) == pytest.approx(3 * (EAGER_S + texts_s))


def test_requests_at_a_time_share_it():
    one, four = (guessed_s(*turns(repeats=1, concurrency=(level,))) for level in (1, 4))
    assert four - 3 * COMPILED_S == pytest.approx((one - 3 * COMPILED_S) / 4)


def test_what_is_left_takes_as_long_as_what_ended():
    settings, found = turns(repeats=2)
    assert left_s(settings, found[:1], 100.0, found[1:]) == pytest.approx(500)
    assert left_s(settings, found[:3], 300.0, found[3:]) == pytest.approx(300)


def test_the_default_takes_less_than_ten_minutes():
    asked = BenchRequest(target="t", drafts=["d"], ks=[3], concurrency=[1])
    settings = (
        MadeUp()
        .settings()
        .model_copy(
            update={
                "repeats": asked.repeats,
                "rounds": asked.rounds,
                "max_tokens": asked.max_tokens,
                "num_prompts": 20,
            }  # fmt: skip
        )
    )
    assert guessed_s(settings, outstanding(settings, [], [])) < 600


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "10 seconds"), (84, "80 seconds"), (400, "7 minutes"), (9000, "2.5 hours")],
)
def test_said(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1e6, True), (None, False)])
def test_what_is_said_before_the_first_engine(monkeypatch, load, warned):
    monkeypatch.setattr(announce, "load_average", lambda: load)
    lines = list(announced(*turns(repeats=1)))
    assert lines[0].startswith("Engines to start: 3. A small model on a CPU takes about ")
    assert any(line.startswith("Warning: load average 1000000.0 on ") for line in lines) == warned


def test_nothing_is_left():
    settings, _ = turns()
    assert not any("Engines to start" in line for line in announced(settings, []))
