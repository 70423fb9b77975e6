"""A schedule of K beside a draft that always makes K tokens, on vLLM's own EngineArgs."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import write_target
from tests.support.drafts import valid_draft, write
from vllm_eagle_ext import plugin
from vllm_eagle_ext.errors import SpeculativeConfigError

KEY = "num_speculative_tokens_per_batch_size"


@pytest.fixture
def configure(monkeypatch, tmp_path):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    plugin.register()
    target = write_target(tmp_path / "target")
    draft = {
        "method": "eagle3", "model": str(write(valid_draft("p-eagle"), tmp_path / "draft")),
        "num_speculative_tokens": 4, "parallel_drafting": True,
    }  # fmt: skip

    def make(schedule, **arguments):
        engine_args = EngineArgs(
            model=str(target),
            speculative_config=draft | ({KEY: schedule} if schedule else {}),
            skip_tokenizer_init=True,
            **arguments,
        )
        model_config = engine_args.create_model_config()
        return engine_args.create_speculative_config(model_config, ParallelConfig())

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
    configure([[1, 8, 4], [9, 32, 2]], data_parallel_size=2)
