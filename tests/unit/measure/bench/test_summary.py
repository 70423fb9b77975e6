from __future__ import annotations

import json

import pytest

from tests.unit.measure.bench.made_up import (
    FAST,
    SLOW,
    STOCK_ERROR,
    TRAFFIC,
    MadeUp,
    altered,
    summarised,
)
from vllm_eagle_ext.measure.bench import summary
from vllm_eagle_ext.measure.bench.results import ContextBin, Variant
from vllm_eagle_ext.measure.bench.rows import PLAIN, labels, variant_name
from vllm_eagle_ext.measure.bench.summary import summarise

OURS = Variant(kind="ours", draft=FAST, k=3)
STOCK = Variant(kind="stock", draft=FAST, k=3)


class TestRow:
    def test_figures(self):
        made = MadeUp(concurrency=(1, 4))
        row = made.report().row(OURS, 4)
        assert row.acceptance_length == pytest.approx(1 + 0.8 + 0.64 + 0.512)
        assert row.acceptance == pytest.approx([0.8, 0.64, 0.512])
        noise = sum(made.noise[:3]) / 3
        assert row.step_ms == pytest.approx(1000 * made.step_s(OURS, 4) * noise)
        assert row.tpot_ms.p50 < row.tpot_ms.p99
        assert row.ttft_ms.mean == pytest.approx(20)
        rates = sorted(
            4 * row.acceptance_length / made.step_s(OURS, 4) / noise for noise in made.noise[:3]
        )
        spread = row.tokens_per_s
        assert [spread.low, spread.median, spread.high] == pytest.approx(rates)

    def test_without_a_draft_a_step_is_a_token(self):
        row = MadeUp().report().plain(1)
        assert (row.acceptance_length, row.acceptance, row.draft_share, row.speedup, row.theory) == (
            1,
            [],
            None,
            None,
            None,
        )
        assert row.step_ms == pytest.approx(row.tpot_ms.mean)

    def test_speedups_are_paired(self):
        """The noise of a repeat is large, and alike for all: none of it is left."""
        made = MadeUp()
        row = made.report().row(OURS, 1)
        wanted = row.acceptance_length * made.step_s(PLAIN, 1) / made.step_s(OURS, 1)
        assert [row.speedup.low, row.speedup.high] == pytest.approx([wanted, wanted])
        wanted = made.step_s(STOCK, 1) / made.step_s(OURS, 1)
        assert row.against_stock.median == pytest.approx(wanted)
        assert row.against_stock.coverage == 0.75
        assert made.report().row(STOCK, 1).against_stock is None

    def test_share_of_the_draft(self):
        made = MadeUp()
        row = made.report().row(OURS, 1)
        assert row.draft_share == pytest.approx(0.0015 / (row.step_ms / 1000))

    def test_share_where_draining_made_the_parts_longer_than_the_step(self):
        made = MadeUp(rest_s=-0.005)
        target_s, draft_s = made.parts(OURS, 1)
        assert made.report().row(OURS, 1).draft_share == pytest.approx(draft_s / (target_s + draft_s))

    def test_latencies_of_requests_of_one_token(self):
        row = altered(MadeUp(), OURS, tpot_s=[], decode_s=0.0, decode_steps=0).row(OURS, 1)
        assert (row.tpot_ms, row.step_ms, row.draft_share) == (None, None, None)
        assert row.tokens_per_s is not None

    def test_no_step_was_drafted(self):
        row = altered(MadeUp(), OURS, drafts=0, accepted=[]).row(OURS, 1)
        assert (row.acceptance_length, row.acceptance, row.theory) == (None, [], None)
        assert row.step_ms is not None


class TestTexts:
    def test_same_and_not(self):
        assert MadeUp().report().row(OURS, 1).same_texts is True
        assert altered(MadeUp(), OURS, texts_sha256="other").row(OURS, 1).same_texts is False
        assert MadeUp().report().plain(1).same_texts is None

    @pytest.mark.parametrize(
        "made",
        [
            pytest.param(MadeUp(temperature=1.0), id="sampled"),
            pytest.param(MadeUp(synthetic=[2.5]), id="accepted by lot"),
            pytest.param(MadeUp(kinds=("stock", "ours")), id="nothing to compare with"),
        ],
    )
    def test_not_asked(self, made):
        assert made.report().row(OURS, 1).same_texts is None
        assert altered(made, OURS, texts_sha256="other").row(OURS, 1).same_texts is None


class TestMissing:
    def test_stock_failed(self):
        report = MadeUp(stock_error=STOCK_ERROR).report()
        row = report.row(STOCK, 1)
        assert (row.measured, row.error, row.tokens_per_s) == (0, STOCK_ERROR, None)
        assert STOCK not in report.variants
        ours = report.row(OURS, 1)
        assert ours.against_stock is None
        assert ours.speedup is not None

    def test_interrupted(self):
        """The third repeat ended within its first engines."""
        engines, measurements = MadeUp().records()
        kept = [m for m in measurements if m.repeat < 2 or m.variant == PLAIN]
        report = summarised(MadeUp(), engines, kept)
        assert [row.measured for row in report.rows] == [3, 2, 2]
        row = report.row(OURS, 1)
        assert (row.speedup.pairs, row.speedup.coverage, row.error) == (2, 0.5, None)

    def test_nothing_yet(self):
        report = summarise(MadeUp().settings(), MadeUp().context(), [], [])
        assert [row.measured for row in report.rows] == [0, 0, 0]
        assert report.variants == []

    def test_an_engine_that_failed_on_the_way_says_why(self):
        engines, measurements = MadeUp().records()
        engines = [
            e.model_copy(update={"error": "lost"}) if (e.variant, e.repeat) == (OURS, 1) else e
            for e in engines
        ]
        kept = [m for m in measurements if m.variant != OURS or m.repeat == 0]
        row = summarised(MadeUp(), engines, kept).row(OURS, 1)
        assert (row.measured, row.error) == (1, "lost")

    def test_an_engine_that_could_not_be_probed(self):
        report = MadeUp(probe_error="ValueError: no").report()
        assert [served.probe_error for served in report.engines] == ["ValueError: no"] * 3
        row = report.row(OURS, 1)
        assert (row.error, row.split, row.theory) == (None, None, None)
        assert row.measured == 3

    def test_a_later_engine_that_could_be_probed(self):
        failed, _ = MadeUp(probe_error="ValueError: no").records()
        engines, measurements = MadeUp().records()
        report = summarised(MadeUp(), [*failed, *engines], measurements)
        assert [served.probe_error for served in report.engines] == [None] * 3
        report = summarised(MadeUp(), [*engines, *failed], measurements)
        assert [served.probe_error for served in report.engines] == ["ValueError: no"] * 3

    def test_none_is_missing(self):
        row = MadeUp(kinds=("stock", "ours")).report().row(OURS, 1)
        assert (row.speedup, row.theory) == (None, None)
        assert row.against_stock is not None

    def test_a_single_repeat_has_no_interval(self):
        row = MadeUp(repeats=1).report().row(OURS, 1)
        assert (row.speedup.pairs, row.speedup.coverage, row.speedup.is_interval) == (1, 0.0, False)

    def test_a_measurement_made_twice_counts_once(self):
        engines, measurements = MadeUp(repeats=1).records()
        later = [m.model_copy(update={"seconds": m.seconds / 2}) for m in measurements]
        report = summarised(MadeUp(repeats=1), engines, [*measurements, *later])
        row = report.row(OURS, 1)
        assert row.measured == 1
        assert row.tokens_per_s.median == pytest.approx(later[-1].tokens_per_s)


def test_rounds_are_pairs_of_their_own():
    report = MadeUp(repeats=2, rounds=3).report()
    assert report.settings.runs == 6
    row = report.row(OURS, 1)
    assert (row.measured, row.speedup.pairs) == (6, 6)
    assert row.drafts == 6 * 10_000


class TestTheory:
    @pytest.fixture
    def asked(self, monkeypatch):
        """What theory() was asked for, by variant's acceptance_length."""
        calls = []
        real = summary.theory
        monkeypatch.setattr(summary, "theory", lambda **given: calls.append(given) or real(**given))
        return calls

    def test_like_is_compared_with_like(self, asked):
        made = MadeUp(kinds=("none", "ours"), concurrency=(4,))
        row = made.report().row(OURS, 4)
        (given,) = asked
        assert given["plain_step_s"] == pytest.approx(
            made.parts(PLAIN, 4)[0]
        )  # without the rest of a step
        assert (given["split"], given["acceptance_length"], given["k"], given["concurrency"]) == (
            row.split,
            row.acceptance_length,
            3,
            4,
        )
        assert given["traffic"] == TRAFFIC
        assert given["context_tokens"] == 40 + 100 / 2
        target_s, draft_s = made.parts(OURS, 4)
        expected = row.acceptance_length * given["plain_step_s"] / (target_s + draft_s)
        assert row.theory.expected_speedup == pytest.approx(expected)

    def test_the_plain_step_is_that_of_the_plain_engine(self, asked):
        """Whose pages lack the records that replay keeps in those of the draft's."""
        made = MadeUp(kinds=("none", "ours"))
        own = TRAFFIC.model_copy(update={"state_per_request": 10**8, "state_blocks": 1})
        plain = own.model_copy(update={"state_per_request": 10**7})
        engines, measurements = made.records()
        engines = [
            e.model_copy(update={"traffic": plain if e.variant == PLAIN else own}) for e in engines
        ]
        row = summarised(made, engines, measurements).row(OURS, 1)
        assert (asked[0]["plain"], asked[0]["traffic"]) == (plain, own)
        engines = [e.model_copy(update={"traffic": e.variant != PLAIN and own or None}) for e in engines]
        other = summarised(made, engines, measurements).row(OURS, 1)
        assert asked[1]["plain"] is None
        assert other.theory.bound_speedup > row.theory.bound_speedup

    def test_no_draft_was_split(self, asked):
        made = MadeUp(kinds=("none", "ours"))
        engines, measurements = made.records()
        engines = [e.model_copy(update={"splits": []}) if e.variant == PLAIN else e for e in engines]
        report = summarised(made, engines, measurements)
        assert asked[0]["plain_step_s"] == pytest.approx(report.plain(1).step_ms / 1000)

    def test_context_by_bins(self, asked):
        MadeUp(kinds=("none", "ours"), bins=2).report()
        assert asked[0]["context_tokens"] == (64 + 192) / 2

    @pytest.mark.parametrize("lost", [{"splits": []}, {"traffic": None}], ids=["no split", "no traffic"])
    def test_none_without(self, lost):
        made = MadeUp()
        engines, measurements = made.records()
        engines = [e.model_copy(update=lost) for e in engines]
        row = summarised(made, engines, measurements).row(OURS, 1)
        assert row.theory is None
        assert row.acceptance_length is not None


class TestPooled:
    def test_over_concurrencies(self):
        report = MadeUp(concurrency=(1, 4), bins=2).report()
        found = report.pooled()[OURS]
        assert found.acceptance == pytest.approx([0.8, 0.64, 0.512])
        assert found.drafts_once == 10_000  # of 6 measurements of the same prompts
        tokens = round(1000 * found.acceptance_length)
        assert found.by_context[0] == ContextBin(start=0, end=128, steps=6000, tokens=6 * tokens)

    def test_no_draft_and_what_was_not_measured(self):
        report = MadeUp(stock_error=STOCK_ERROR).report()
        assert list(report.pooled()) == [PLAIN, OURS]
        assert report.pooled()[PLAIN].acceptance_length is None


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        pytest.param(["org/a", "org/b"], ["a", "b"], id="last part"),
        pytest.param(["x/a", "y/a"], ["x/a", "y/a"], id="told apart"),
        pytest.param(["/models/a", "a"], ["models/a", "a"], id="one ends in the other"),
        pytest.param(["one/deep/a", "two/deep/a", "b"], ["one/deep/a", "two/deep/a", "b"], id="deeper"),
    ],
)
def test_labels(names, shown):
    assert list(labels(names).values()) == shown
    assert len(set(labels(names).values())) == len(names)


def test_names():
    shown = labels([FAST, SLOW])
    assert variant_name(OURS, shown) == "ours fast-draft K=3"
    assert variant_name(PLAIN, shown) == "none"


def test_order_and_json():
    made = MadeUp(drafts=(FAST, SLOW), ks=(3, 5), concurrency=(1, 4))
    report = made.report()
    first = [(row.variant.kind, row.variant.draft, row.variant.k) for row in report.rows[:4]]
    assert first == [("none", None, 0), ("stock", FAST, 3), ("ours", FAST, 3), ("stock", FAST, 5)]
    assert len(report.rows) == 2 * 9
    found = json.loads(report.model_dump_json())
    assert found["context"]["versions"] == {"vllm": "0.32.0"}
    assert found["settings"]["seed"] == 0
    assert found["rows"][2]["acceptance"][0] == pytest.approx(0.8)
    assert found["engines"][0]["facts"] == {"drafter": "X"}
