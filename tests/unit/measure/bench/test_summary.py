from __future__ import annotations

import json

import pytest
from jsonschema import ValidationError, validate

from tests.unit.measure.bench.made_up import OURS, STOCK, STOCK_ERROR, MadeUp, changing, load
from tools import schemas
from vllm_eagle_ext.cli.terminal import json_text
from vllm_eagle_ext.measure.bench.results import PLAIN, Measurement, Report, labels


def row(report, variant=OURS, concurrency=1):
    return report.row("texts", variant, load(concurrency))


class TestRow:
    def test_metrics(self):
        made = MadeUp(concurrency=(1, 4))
        ours = row(made.report(), concurrency=4)
        assert ours.acceptance_length == pytest.approx(1 + 0.8 + 0.64 + 0.512)
        assert ours.acceptance == pytest.approx([0.8, 0.64, 0.512])
        assert ours.step_ms == pytest.approx(1000 * made.step_s(OURS, 4))  # the median of three
        spread = ours.tokens_per_s
        assert [spread.low, spread.median, spread.high] == sorted(run.tokens_per_s for run in ours.runs)

    def test_without_a_draft_a_step_is_a_token(self):
        plain = row(MadeUp().report(), PLAIN)
        assert (plain.acceptance_length, plain.acceptance) == (1, [])
        assert (plain.speedup, plain.step_ratio) == (None, None)

    def test_ratios_are_paired(self):
        """The noise of a repeat is large, and alike for all: none of it is left."""
        made = MadeUp()
        ours = row(made.report())
        steps = made.step_s(OURS, 1) / made.step_s(PLAIN, 1)
        assert [ours.step_ratio.low, ours.step_ratio.high] == pytest.approx([steps, steps])
        wanted = ours.acceptance_length / steps
        assert [ours.speedup.low, ours.speedup.high] == pytest.approx([wanted, wanted])
        wanted = made.step_s(STOCK, 1) / made.step_s(OURS, 1)
        assert ours.against_stock.median == pytest.approx(wanted)
        assert ours.against_stock.coverage == 0.75
        assert row(made.report(), STOCK).against_stock is None

    def test_no_step_was_drafted(self):
        ours = row(MadeUp().report(changing(OURS, drafts=0, accepted=[])))
        assert (ours.acceptance_length, ours.acceptance) == (None, [])
        assert ours.step_ms == row(MadeUp().report()).step_ms


def test_requests_by_length_and_category():
    """Each of three measurements has three requests, of 1, 3.5 and 4 tokens a step."""
    counted = ([8, 0, 0, 0], [0, 0, 4, 4], [0, 0, 0, 8])
    ours = row(MadeUp(histograms=counted, categories=("code", "prose", None)).report())
    assert ours.requests_by_length == {"1-2": 3, "2-3": 0, "3-4": 6}
    assert ours.length_by_category == {"code": 1.0, "prose": 3.5, "(none)": 4.0}


class TestTexts:
    def test_same_and_not(self):
        assert row(MadeUp().report()).same_texts is True
        assert row(MadeUp().report(changing(OURS, texts_sha256="other"))).same_texts is False
        assert row(MadeUp().report(), PLAIN).same_texts is None

    @pytest.mark.parametrize(
        "made",
        [
            pytest.param(MadeUp(temperature=1.0), id="sampled"),
            pytest.param(MadeUp(synthetic=[2.5]), id="accepted by lot"),
            pytest.param(MadeUp(kinds=("stock", "ours")), id="nothing to compare with"),
        ],
    )
    def test_not_asked(self, made):
        assert row(made.report()).same_texts is None
        assert row(made.report(changing(OURS, texts_sha256="other"))).same_texts is None


class TestMissing:
    def test_stock_failed(self):
        report = MadeUp(stock_error=STOCK_ERROR).report()
        stock = row(report, STOCK)
        assert (stock.measured, stock.error, stock.tokens_per_s) == (0, STOCK_ERROR, None)
        assert STOCK not in {run.variant for run in report.of("texts")}
        assert row(report).against_stock is None
        assert row(report).speedup is not None

    def test_interrupted(self):
        """The third repeat ended within its first engines."""
        report = MadeUp().report(
            lambda r: None if hasattr(r, "load") and r.repeat == 2 and r.variant != PLAIN else r
        )
        assert [r.measured for r in report.rows] == [3, 2, 2]
        ours = row(report)
        assert (ours.speedup.pairs, ours.speedup.coverage, ours.error) == (2, 0.5, None)

    def test_an_engine_that_failed_on_the_way_says_why(self):
        def fail(r):
            if r.variant != OURS or not r.repeat:
                return r
            return None if isinstance(r, Measurement) else r.model_copy(update={"error": "lost"})

        ours = row(MadeUp().report(fail))
        assert (ours.measured, ours.error) == (1, "lost")


def test_rounds_are_pairs_of_their_own():
    report = MadeUp(repeats=2, rounds=3).report()
    assert report.settings.runs == 6
    ours = row(report)
    assert (ours.measured, ours.speedup.pairs) == (6, 6)
    assert ours.drafts == 6 * 10_000
    gain = row(MadeUp(repeats=1).report()).speedup
    assert (gain.pairs, gain.coverage, gain.is_interval) == (1, 0.0, False)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        pytest.param(["org/a", "org/b"], ["a", "b"], id="last part"),
        pytest.param(["x/a", "y/a"], ["x/a", "y/a"], id="told apart"),
        pytest.param(["/models/a", "a"], ["/models/a", "a"], id="one ends in the other"),
        pytest.param(["one/deep/a", "two/deep/a", "b"], ["one/deep/a", "two/deep/a", "b"], id="deeper"),
    ],
)
def test_labels(names, shown):
    assert list(labels(names).values()) == shown
    assert len(set(labels(names).values())) == len(names)


def test_a_report_of_an_earlier_version_can_be_read():
    """As it was, but for keys that are no longer measured; "tune" was --schedule."""
    kept = json.loads(MadeUp().report().model_dump_json()) | {"choice": None}
    kept["settings"]["command"] = "tune"
    stored = json.loads(json.dumps(kept))
    stored["engines"][0] |= {"splits": [{"concurrency": 1, "draft_s": 0.1}], "probe_error": None}
    stored["rows"][2] |= {"split": {"concurrency": 1}, "draft_share": 0.2, "tpot_ms": {"mean": 1.5}}
    assert json.dumps(Report.model_validate(stored).model_dump()) == json.dumps(kept)


def test_the_published_schemas_are_those_of_the_records():
    """A report holds to its own, and one without a key that is promised does not."""
    for name in schemas.RECORDS:
        assert json.loads((schemas.FOLDER / f"{name}.json").read_text()) == schemas.schema(name)
    doc = json.loads(json_text(MadeUp().report().model_dump(), 0))
    validate(doc, schemas.schema("bench"))
    del doc["rows"]
    with pytest.raises(ValidationError):
        validate(doc, schemas.schema("bench"))
