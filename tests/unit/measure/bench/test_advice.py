from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.unit.measure.bench.made_up import FAST, SLOW, STOCK_ERROR, TRAFFIC, MadeUp
from vllm_eagle_ext.drafter_classes import (
    DEEPSEEK_DRAFTER,
    DFLASH2_DRAFTER,
    DFLASH_DRAFTER,
    DSPARK_DRAFTER,
    LLAMA_DRAFTER,
)
from vllm_eagle_ext.measure.bench.advice import bench_advice
from vllm_eagle_ext.measure.bench.results import Variant
from vllm_eagle_ext.measure.bench.summary import summarise

QUIET = (1.0, 1.01, 1.02)  # noise that is none to speak of
OURS = Variant(kind="ours", draft=FAST, k=3)


def told(made: MadeUp, change=lambda record: record) -> list[str]:
    engines, measurements = made.records()
    changed = [change(record) for record in (*engines, *measurements)]
    count = len(engines)
    return bench_advice(summarise(made.settings(), made.context(), changed[:count], changed[count:]))


def changing(variant: Variant, **update):
    """Changes a variant's measurements."""

    def change(record):
        mine = record.variant == variant and hasattr(record, "seconds")
        return record.model_copy(update=update) if mine else record

    return change


def scaling(variant: Variant, factors: Sequence[float]):
    """The times of a variant's measurements, by repeat."""

    def change(record):
        if record.variant != variant or not hasattr(record, "seconds"):
            return record
        factor = factors[record.repeat]
        update = {"seconds": factor * record.seconds, "decode_s": factor * record.decode_s}
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
        engines, measurements = made.records()
        first, *_ = bench_advice(summarise(made.settings(), made.context(), engines, measurements))
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
    """Each cause alone; the others must not be named."""

    CAUSES = ("first drafted token", "verifying", "the draft takes", "outside target and draft")

    def named(self, line: str) -> list[str]:
        assert line.startswith("no draft is faster at concurrency")
        return [cause for cause in self.CAUSES if cause in line]

    def test_one_measurement(self):
        (line,) = told(MadeUp(first={FAST: 0.05}, repeats=1))
        assert self.named(line) == ["first drafted token"]
        assert "(one measurement, so no interval: raise --repeats). Why:" in line

    @pytest.mark.parametrize(
        ("concurrency", "repeats", "said"),
        [
            (1, 1, None),  # what disturbed a single one is not known
            (1, 3, "outside target and draft (scheduling)"),
            (16, 3, "outside target and draft (scheduling, prompts of other requests)"),
        ],
    )
    def test_rest_of_a_step(self, concurrency, repeats, said):
        made = MadeUp(kinds=("none", "ours"), concurrency=(concurrency,), repeats=repeats, noise=QUIET)
        line = told(made, scaling(OURS, (4,) * repeats))[0]
        assert ("outside target and draft" in self.named(line)) == bool(said)
        assert (said or "no single cause stands out") in line

    def test_low_acceptance(self):
        (line,) = told(MadeUp(first={FAST: 0.05}, noise=QUIET))
        assert self.named(line) == ["first drafted token"]
        assert "accepted in 5% of steps, acceptance length 1.05" in line

    def test_verification_at_high_concurrency(self):
        made = MadeUp(first={FAST: 0.5}, ks=(7,), concurrency=(16,), verify_per_row=0.05, noise=QUIET)
        line, untried = told(made)
        assert self.named(line) == ["verifying"]
        lengths = dataclasses.replace(made, synthetic=[2.0])
        assert not any("measure it" in line for line in told(lengths))
        assert "verifying 128 tokens costs 4.2 steps without a draft: at this concurrency" in line
        assert "K=1 should give 2.23 times as much at concurrency 16: measure it" in untried

    def test_verification_of_experts(self):
        made = MadeUp(first={FAST: 0.5}, ks=(7,), verify_per_row=0.3, noise=QUIET)
        experts = TRAFFIC.model_copy(update={"experts": 64, "experts_per_token": 4})

        def change(record):
            return (
                record.model_copy(update={"traffic": experts}) if hasattr(record, "traffic") else record
            )

        line, _ = told(made, change)
        assert self.named(line) == ["verifying"]
        assert "mixture of experts" in line
        assert "mixture of experts" not in told(made)[0]

    def test_a_large_draft(self):
        (line,) = told(MadeUp(first={FAST: 0.5}, draft_s=0.005, noise=QUIET))
        assert self.named(line) == ["the draft takes"]

    def test_the_rest(self):
        made = MadeUp(kinds=("none", "ours"), noise=QUIET)
        assert self.named(told(made, scaling(OURS, (4, 4, 4)))[0]) == ["outside target and draft"]


class TestWarnings:
    def test_nothing_to_warn_of(self):
        assert len(told(MadeUp(noise=QUIET, bins=4))) == 1

    def test_fading_acceptance(self):
        lines = told(MadeUp(noise=QUIET, bins=4, fading=0.5))
        found = [line for line in lines if "the acceptance length falls with the context" in line]
        assert len(found) == 2  # ours and stock
        assert "2.95 below 128 tokens and 1.48 from 512" in found[0]

    @pytest.mark.parametrize(
        ("drafter", "eagle_ext", "is_named"),
        [
            (LLAMA_DRAFTER, {}, True),
            (DFLASH_DRAFTER, {"norm_output": True}, True),
            (DFLASH_DRAFTER, {"draft_window": 64}, False),  # measured with it
            (DEEPSEEK_DRAFTER, {}, False),  # latent attention
            (DFLASH2_DRAFTER, {}, False),
            (DSPARK_DRAFTER, {}, False),
        ],
    )
    def test_a_window_is_named_where_it_can_be_had(self, drafter, eagle_ext, is_named):
        """As a start's warning of texts longer than those of training does."""
        made = MadeUp(noise=QUIET, bins=4, fading=0.5, drafter=drafter.architecture, eagle_ext=eagle_ext)
        found = [line for line in told(made) if "falls with the context" in line]
        assert len(found) == 2  # ours and stock
        option = """--eagle-ext '{"draft_window": 128}'"""
        assert [option in line for line in found] == [is_named] * 2
        assert all(line.endswith("tokens alone." if is_named else "you serve.") for line in found)

    def test_no_window_of_stock_vllm(self):
        """Which of this package's classes would serve the draft, its engines do not tell."""
        made = MadeUp(
            noise=QUIET, bins=4, fading=0.5, kinds=("none", "stock"), drafter="Eagle3LlamaForCausalLM"
        )
        (line,) = [line for line in told(made) if "falls with the context" in line]
        assert "draft_window" not in line

    def test_bins_of_few_steps_say_nothing(self):
        def rare(record):
            if not hasattr(record, "by_context"):
                return record
            few = [part.model_copy(update={"steps": 9, "tokens": 9}) for part in record.by_context[1:]]
            return record.model_copy(update={"by_context": [record.by_context[0], *few]})

        assert len(told(MadeUp(noise=QUIET, bins=4, fading=0.5), rare)) == 1

    def test_stock_accepts_otherwise(self):
        stock = OURS.model_copy(update={"kind": "stock"})
        lines = told(MadeUp(noise=QUIET), changing(stock, accepted=[3000, 900, 300]))
        assert any("acceptance length 2.95, with stock vLLM 1.42" in line for line in lines)

    def test_what_sampling_explains_is_no_difference(self):
        stock = OURS.model_copy(update={"kind": "stock"})
        lines = told(MadeUp(noise=QUIET), changing(stock, accepted=[8050, 6450, 5150]))
        assert len(lines) == 1

    def test_repeats_of_the_same_texts_are_no_further_sample(self):
        """Ten times the repeats must not turn the same small difference into a large one."""
        stock = OURS.model_copy(update={"kind": "stock"})
        made = MadeUp(noise=QUIET * 10, repeats=30)
        assert len(told(made, changing(stock, accepted=[8050, 6450, 5150]))) == 1

    def test_slower_than_stock(self):
        made = MadeUp(noise=QUIET * 2, repeats=6, stock_extra_s=-0.002)
        (line,) = [line for line in told(made) if "slower" in line]
        assert "stock vLLM, 0.84x at worst: ours fast-draft K=3 at concurrency 1." in line

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
        assert "in 3 of 3 rows, at most 23%" in line


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
    assert bench_advice(summarise(MadeUp().settings(), MadeUp().context(), [], [])) == []


class TestOtherWork:
    """On the machine, told first: it makes all times doubtful."""

    def report(self, load: float | None, other: float | None = 0.0, cores: int | None = 2):
        made = MadeUp(noise=QUIET)
        engines, measurements = made.records()
        changed = [m.model_copy(update={"other_cores": other}) for m in measurements]
        context = made.context().model_copy(update={"load_average": load, "cores": cores})
        return summarise(made.settings(), context, engines, changed)

    def test_load_before_the_first_engine(self):
        first, *_ = bench_advice(self.report(3.1))
        assert first.startswith("other work ran on these 2 cores, load average 3.1 before the first")

    def test_others_while_it_was_measured(self):
        first, *_ = bench_advice(self.report(0.1, 1.3))
        assert "up to 1.3 cores busy with it during a measurement (none at concurrency 1)" in first

    @pytest.mark.parametrize(
        "report", [(0.9, 0.4), (None, None), (3.1, 1.3, None)], ids=["little", "unknown", "older"]
    )
    def test_nothing_is_said(self, report):
        assert not any("other work" in line for line in bench_advice(self.report(*report)))
