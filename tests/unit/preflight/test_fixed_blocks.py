"""A schedule of K beside a draft that always makes K tokens, on vLLM's own EngineArgs."""

from __future__ import annotations

import pytest

from tests.support.drafts import valid_draft, write
from tests.unit.preflight.configs import speculative_config
from vllm_eagle_ext.errors import SpeculativeConfigError

KEY = "num_speculative_tokens_per_batch_size"


@pytest.fixture
def configure(monkeypatch, tmp_path, target):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    draft = write(valid_draft("p-eagle"), tmp_path / "draft")

    def make(schedule, **arguments):
        keys = {KEY: schedule, "parallel_drafting": True}
        return speculative_config(target, draft, arguments=arguments, **keys)

    return make


@pytest.mark.parametrize("schedule", [None, [[1, 8, 4], [9, 32, 0]]])
def test_k_and_0_are_served(configure, schedule):
    """V1 always makes K of them; with 0 it reads none."""
    assert configure(schedule).num_speculative_tokens == 4


def test_shorter_drafts_of_parallel_eagle3_are_refused(configure):
    """V1 would read K tokens as rows of fewer."""
    with pytest.raises(SpeculativeConfigError, match=r"batch_size is \[\[1, 8, 4\], \[9, 32, 2\]\]"):
        configure([[1, 8, 4], [9, 32, 2]])


def test_a_schedule_that_vllm_turns_off_is_not_refused(configure):
    ranks = {"data_parallel_size": 2, "distributed_executor_backend": "mp"}
    assert configure([[1, 8, 4], [9, 32, 2]], **ranks).num_speculative_tokens == 4
