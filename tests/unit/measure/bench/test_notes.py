"""What is said around the tables: of the machine, of failures, which K, what not to trust."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import FAST, OURS, QUIET, STOCK_ERROR, MadeUp, changing
from vllm_eagle_ext.measure.bench.printed import about_the_machine, notes, reason
from vllm_eagle_ext.measure.bench.results import Measurement


def advice(made: MadeUp, change=lambda record: record) -> list[str]:
    return made.report(change).advice


def scaling(k, factors):
    """The speed of our measurements with this K, by repeat."""

    def change(record):
        if not isinstance(record, Measurement) or record.variant != OURS.model_copy(update={"k": k}):
            return record
        rate = record.tokens_per_s / factors[record.repeat]
        return record.model_copy(update={"tokens_per_s": rate})

    return change


class TestBest:
    def test_of_each_concurrency(self):
        first, second = advice(MadeUp(ks=(1, 3, 7), concurrency=(1, 32), noise=QUIET))
        assert first == "at concurrency 1 the best is K=7, 3.01x (3.01 to 3.01) of no draft."
        assert second.startswith("at concurrency 32 the best is K=3, 1.65x")

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (MadeUp(noise=QUIET), ["at concurrency 1 K=3, 2.54x (2.54 to 2.54) of no draft."]),
            (MadeUp(repeats=1), ["at concurrency 1 K=3, 2.54x of no draft."]),
            (
                MadeUp(kinds=("none", "stock"), noise=QUIET),
                ["at concurrency 1 K=3, 2.50x (2.50 to 2.50) of no draft."],
            ),
            (
                MadeUp(first={FAST: 0.05}, noise=QUIET),
                ["at concurrency 1 no draft is faster; K=3, 0.90x (0.90 to 0.90) of no draft."],
            ),
            (MadeUp(kinds=("ours",), noise=QUIET), []),
        ],
        ids=["one K", "one repeat", "stock alone", "losing", "without none"],
    )
    def test_of_one_k(self, made, said):
        assert advice(made) == said

    def test_no_difference(self):
        made = MadeUp(first={FAST: 0.12}, jitter=0.05, noise=QUIET, repeats=3)
        assert advice(made)[0].startswith("at concurrency 1 no difference is seen; K=3")

    def test_a_sure_gain_goes_before_a_larger_median(self):
        """K=5 may be slower than no draft; K=3 is not."""
        made = MadeUp(ks=(3, 5), kinds=("none", "ours"), noise=QUIET)
        (line,) = advice(made, scaling(5, (0.6, 1, 3)))
        assert "the best is K=3, 2.54x (2.54 to 2.54) of no draft; within its interval: K=5." in line

    def test_an_acceptance_length_that_was_set_is_that_of_every_k(self):
        made = MadeUp(ks=(1, 3), kinds=("none", "ours"), noise=QUIET, synthetic=[2.5])
        assert [line[:20] for line in advice(made)] == ["at concurrency 1 K=1", "at concurrency 1 K=3"]


def test_other_texts():
    lines = advice(MadeUp(concurrency=(1, 4)), changing(OURS, texts_sha256="other"))
    (line,) = [line for line in lines if "texts differ" in line]
    assert "in 2 of 4 rows (ours fast-draft K=3): `vllm-eagle verify`" in line


@pytest.mark.parametrize(
    ("given", "others", "is_said"),
    [
        ({"load_average": 3.1, "cores": 2}, 0.0, True),
        ({"load_average": 0.1, "cores": 2}, 1.3, True),
        ({"load_average": 0.9, "cores": 2}, 0.4, False),
        ({}, None, False),
    ],
    ids=["before", "meanwhile", "little", "unknown"],
)
def test_other_work_is_told(given, others, is_said):
    lines = list(about_the_machine(MadeUp(other_cores=others).report(**given)))
    assert any(line.startswith("Other work ran on this machine (load") for line in lines) == is_said
    assert any(line.startswith("load average") for line in lines) == bool(given)


def test_what_was_not_served_is_said_once():
    (line,) = [
        line
        for line in notes(MadeUp(stock_error=STOCK_ERROR, concurrency=(1, 4), ks=(3, 5)).report())
        if not line.startswith("ratios")
    ]
    assert line == (
        "not served: stock fast-draft K=3, stock fast-draft K=5: "
        "ValueError: stock cannot read five aux layers"
    )


def test_interrupted():
    def cut(r):
        return None if hasattr(r, "load") and r.repeat and r.variant == OURS else r

    assert "interrupted, with fewer than 3 measurements: ours fast-draft K=3." in notes(
        MadeUp().report(cut)
    )
    assert not any(line.startswith("interrupted") for line in notes(MadeUp().report()))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (STOCK_ERROR, "ValueError: stock cannot read five aux layers"),
        ("exit status -6\nsee its log:\nb\n", "exit status -6"),
        ("exit status 1\nsee its log:\nOSError: b\n", "OSError: b"),
        ("ValueError: a\nsee its log:\nOSError: b\n", "ValueError: a"),
        ("", "no message"),
    ],
    ids=["root cause", "a log without an error", "the log's error", "its own error", "nothing"],
)
def test_reason(error, line):
    assert reason(error) == line
