from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.measure.bench.made_up import (
    FAST,
    OURS,
    QUIET,
    SLOW,
    STOCK,
    STOCK_ERROR,
    MadeUp,
    changing,
    context,
)
from vllm_eagle_ext.measure.bench.advice import bench_advice
from vllm_eagle_ext.measure.bench.results import Measurement, Variant
from vllm_eagle_ext.measure.bench.summary import summarise


def told(made: MadeUp, change=lambda record: record) -> list[str]:
    return made.report(change).advice


def scaling(variant: Variant, factors: Sequence[float]):
    """The times of a variant's measurements, by repeat."""

    def change(record):
        if not isinstance(record, Measurement) or record.variant != variant:
            return record
        factor = factors[record.repeat]
        update = {"tokens_per_s": record.tokens_per_s / factor, "step_s": factor * record.step_s}
        return record.model_copy(update=update | {"tpot_s": [factor * one for one in record.tpot_s]})

    return change


class TestBest:
    def test_of_each_concurrency(self):
        made = MadeUp(ks=(1, 3, 7), concurrency=(1, 32), noise=QUIET)
        first, second = told(made)
        assert first == "best K at concurrency 1: 7, 3.01x no draft (3.01 to 3.01)."
        assert second.startswith("best K at concurrency 32: 3, 1.65x no draft")

    def test_of_each_draft(self):
        lines = told(MadeUp(ks=(1, 3), drafts=(FAST, SLOW), noise=QUIET))
        assert [line.partition(":")[0] for line in lines] == ["fast-draft", "slow-draft"]

    def test_of_one_k(self):
        (line,) = told(MadeUp(noise=QUIET))
        assert line.startswith("at concurrency 1 K=3 gives 2.54x no draft (")

    def test_no_difference(self):
        made = MadeUp(first={FAST: 0.12}, jitter=0.05, noise=QUIET, repeats=3)
        assert told(made)[0].startswith("no difference seen at concurrency 1: K=3 gives")

    def test_one_repeat(self):
        assert "so no interval" in told(MadeUp(repeats=1))[0]

    def test_without_none(self):
        (line,) = told(MadeUp(kinds=("ours",), ks=(1, 3), noise=QUIET))
        assert line.startswith("at concurrency 1 K=3 is fastest")
        assert "nothing was measured" in line

    def test_of_one_k_without_none(self):
        assert told(MadeUp(kinds=("ours",), noise=QUIET))[0].startswith("at concurrency 1 K=3 gives")

    def test_a_sure_gain_goes_before_a_larger_median(self):
        """K=5 may be slower than no draft; K=3 is not."""
        made = MadeUp(ks=(3, 5), kinds=("none", "ours"), noise=QUIET)
        line = told(made, scaling(OURS.model_copy(update={"k": 5}), (0.6, 1, 3)))[0]
        assert line.startswith("best K at concurrency 1: 3, 2.54x no draft (2.54 to 2.54); K=5 does as")

    def test_others_within_its_interval(self):
        made = MadeUp(ks=(3, 4, 7), kinds=("none", "ours"), noise=QUIET)
        seven = OURS.model_copy(update={"k": 7})
        line = told(made, scaling(seven, (0.8, 1, 1.3)))[0]
        assert line.endswith("; K=3 and K=4 do as well within their intervals.")
        line = told(made, scaling(seven, (0.9, 1, 1.15)))[0]
        assert line.endswith("; K=4 does as well within its interval.")

    def test_one_measurement_names_no_others(self):
        made = MadeUp(ks=(3, 5), kinds=("none", "ours"), repeats=1)
        first, *_ = told(made)
        assert "best K" in first
        assert "does as well" not in first

    def test_an_acceptance_length_that_was_set_is_that_of_every_k(self):
        made = MadeUp(ks=(1, 3), kinds=("none", "ours"), noise=QUIET, synthetic=[2.5])
        lines = told(made)
        assert [line[:25] for line in lines] == [
            "at concurrency 1 K=1 give",
            "at concurrency 1 K=3 give",
        ]
        rates = told(MadeUp(ks=(1, 3), kinds=("none", "ours"), noise=QUIET, synthetic=[0.8, 0.6]))
        assert rates[0].startswith("best K at concurrency 1: 3")

    def test_of_stock_alone(self):
        (line,) = told(MadeUp(kinds=("none", "stock"), noise=QUIET))
        assert "K=3 gives 2.50x" in line


class TestLosing:
    def test_no_draft_is_faster(self):
        (line,) = told(MadeUp(first={FAST: 0.05}, noise=QUIET))
        assert line == "no draft is faster at concurrency 1: K=3 gives 0.90x no draft (0.90 to 0.90)."

    def test_by_one_measurement(self):
        (line,) = told(MadeUp(first={FAST: 0.05}, repeats=1))
        assert line.startswith("no draft is faster at concurrency 1: K=3 gives ")
        assert line.endswith("(one measurement, so no interval: raise --repeats).")


class TestWarnings:
    def test_nothing_to_warn_of(self):
        assert len(told(MadeUp(noise=QUIET))) == 1

    def test_stock_accepts_otherwise(self):
        lines = told(MadeUp(noise=QUIET), changing(STOCK, accepted=[3000, 900, 300]))
        assert any("acceptance length 2.95, with stock vLLM 1.42" in line for line in lines)

    def test_what_sampling_explains_is_no_difference(self):
        lines = told(MadeUp(noise=QUIET), changing(STOCK, accepted=[8050, 6450, 5150]))
        assert len(lines) == 1

    def test_repeats_of_the_same_texts_are_no_further_sample(self):
        """Ten times the repeats must not turn the same small difference into a large one."""
        made = MadeUp(noise=QUIET * 10, repeats=30)
        assert len(told(made, changing(STOCK, accepted=[8050, 6450, 5150]))) == 1

    def test_slower_than_stock(self):
        made = MadeUp(noise=QUIET * 2, repeats=6, stock_extra_s=-0.002)
        (line,) = [line for line in told(made) if "slower" in line]
        assert line.endswith("stock vLLM: ours fast-draft K=3 at concurrency 1, 0.84x (0.84 to 0.84).")

    @pytest.mark.parametrize("repeats", [1, 5])
    def test_too_few_pairs_for_slower_than_stock(self, repeats):
        made = MadeUp(noise=QUIET * 2, repeats=repeats, stock_extra_s=-0.002)
        assert not any("slower" in line for line in told(made))

    def test_texts(self):
        lines = told(MadeUp(noise=QUIET, concurrency=(1, 4)), changing(OURS, texts_sha256="other"))
        (line,) = [line for line in lines if "texts differ" in line]
        assert "in 2 of 4 rows (ours fast-draft K=3 at concurrency 1, ours" in line
        assert "vllm-eagle verify" in line

    def test_noise(self):
        assert not [line for line in told(MadeUp(noise=QUIET)) if "noisy" in line]
        (line,) = [line for line in told(MadeUp(noise=(1.0, 1.3, 1.01))) if "noisy" in line]
        assert "in 3 of 3 rows (none at concurrency 1, " in line


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(MadeUp(stock_error=STOCK_ERROR, noise=QUIET), id="stock failed"),
        pytest.param(MadeUp(temperature=1.0, noise=QUIET), id="sampled"),
    ],
)
def test_advice_is_as_without(made):
    assert told(made) == told(MadeUp(noise=QUIET))


def test_nothing_was_measured():
    assert bench_advice(summarise(MadeUp().settings(), context(), [], [])) == []
