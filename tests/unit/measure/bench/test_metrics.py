"""What is kept of a measurement: metrics of texts that were decoded, and of timed steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_eagle_ext.measure.bench.summary import metrics_of_steps, metrics_of_texts
from vllm_eagle_ext.measure.engine.load import Answer, Measured, TimedSteps

ANSWER = Answer(
    prompt_tokens=120, tokens=list(range(11)), steps=[1, 4, 4, 2], decode_s=2.0,
    histogram=[0, 1, 0, 2],
)  # fmt: skip


def test_metrics_of_texts():
    stats = metrics_of_texts(Measured(1.0, [ANSWER]))
    assert (stats["drafts"], stats["accepted"], stats["histograms"]) == (3, [3, 2, 2], [[0, 1, 0, 2]])
    assert stats["tokens_per_s"] == 11
    assert stats["step_s"] == pytest.approx(2.0 / 3)  # the prompt's step is none of decoding


def test_a_request_without_drafts_keeps_its_place():
    """Categories go by place."""
    undrafted = replace(ANSWER, histogram=[])
    assert metrics_of_texts(Measured(1.0, [undrafted, ANSWER]))["histograms"] == [[], [0, 1, 0, 2]]
    assert metrics_of_texts(Measured(1.0, [undrafted]))["histograms"] == []


@pytest.mark.parametrize(
    ("answers", "step_s"),
    [
        # 100 steps each of 10 ms, one text of one token a step and one of four.
        ([([1] * 101, 1.0), ([1] + [4] * 100, 1.0)], 0.01),
        # Without a draft: 10 steps of 28 ms, which more prompts ran beside, and 90 of 8 ms.
        ([([1] * 11, 0.28), ([1] * 91, 0.72)], 0.01),
        # Four steps of 4 tokens each, of which the text takes 13.
        ([([1, 4, 4, 4, 1], 0.04)], 0.01),
        ([([1], 0.0)], None),
    ],
    ids=["unequal acceptance", "unequal length", "a last step that was cut", "no step"],
)
def test_a_step_is_a_step_of_the_target(answers, step_s):
    """Where mean TPOT x acceptance length is something else."""
    stats = metrics_of_texts(
        Measured(1.0, [Answer(8, [7] * sum(steps), steps, s) for steps, s in answers])
    )
    assert stats["step_s"] == (step_s if step_s is None else pytest.approx(step_s))


def test_metrics_of_steps():
    """A straggler moves nothing; waves behind each other are one load."""
    waves = [
        TimedSteps([0.01, 0.01, 0.5], 12, drafts=8, accepted=[6, 4]),
        TimedSteps([0.01, 0.01, 0.01], 6, drafts=4, accepted=[2]),
    ]
    stats = metrics_of_steps(waves)
    assert stats["step_s"] == 0.01
    assert stats["tokens_per_s"] == pytest.approx(18 / 6 / 0.01)
    assert (stats["drafts"], stats["accepted"]) == (12, [8, 4])
