"""Step time of texts whose lengths or acceptance differ."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import FAST, MadeUp, altered, summarised
from vllm_eagle_ext.measure.bench.results import Variant
from vllm_eagle_ext.measure.bench.rows import PLAIN

OURS = Variant(kind="ours", draft=FAST, k=3)


def timed(steps: list[int], tokens: list[int], step_s: list[float]) -> dict:
    """A measurement, one text an entry."""
    decode = [count * seconds for count, seconds in zip(steps, step_s, strict=True)]
    return {
        "decode_s": sum(decode),
        "decode_steps": sum(steps),
        "tpot_s": [seconds / count for seconds, count in zip(decode, tokens, strict=True)],
    }


class TestStepTime:
    """Steps of 10 ms, where mean TPOT x acceptance length is something else."""

    def test_texts_of_unequal_acceptance(self):
        """TPOT 10 and 2.5 ms, acceptance length 2.5."""
        update = timed([100, 100], [100, 400], [0.01, 0.01]) | {"drafts": 200, "accepted": [100] * 3}
        row = altered(MadeUp(), OURS, **update).row(OURS, 1)
        assert row.step_ms == pytest.approx(10)
        assert row.tpot_ms.mean * row.acceptance_length == pytest.approx(15.625)

    def test_texts_of_unequal_length(self):
        """Without a draft: 10 steps of 28 ms, which more prompts ran beside, and 90 of 8 ms."""
        row = altered(MadeUp(), PLAIN, **timed([10, 90], [10, 90], [0.028, 0.008])).plain(1)
        assert row.step_ms == pytest.approx(10)
        assert row.tpot_ms.mean * row.acceptance_length == pytest.approx(18)

    def test_a_last_step_that_the_end_cut(self):
        """Four steps of 4 tokens each, all accepted, of which the text takes 13."""
        update = timed([4], [13], [0.01]) | {"drafts": 4, "accepted": [4, 4, 4]}
        row = altered(MadeUp(), OURS, **update).row(OURS, 1)
        assert row.step_ms == pytest.approx(10)
        assert row.tpot_ms.mean * row.acceptance_length == pytest.approx(160 / 13)

    def test_over_all_measurements(self):
        engines, measurements = MadeUp(repeats=2).records()
        parts = [{"decode_s": 1.0, "decode_steps": 10}, {"decode_s": 1.0, "decode_steps": 90}]
        changed = [m.model_copy(update=parts[m.repeat]) for m in measurements]
        assert summarised(MadeUp(repeats=2), engines, changed).row(OURS, 1).step_ms == pytest.approx(20)
