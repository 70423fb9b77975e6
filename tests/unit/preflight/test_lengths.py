"""Room for drafts at the end of max_model_len, on vLLM's own EngineArgs."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import tiny_draft, write_target
from tests.support.drafts import valid_draft, write
from vllm_eagle_ext import plugin

LENGTH, K = 256, 4


@pytest.fixture
def speculative(tmp_path):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    target = write_target(tmp_path / "target")

    def make(draft, method="eagle3", k=K, **keys):
        engine_args = EngineArgs(
            model=str(target),
            skip_tokenizer_init=True,
            max_model_len=LENGTH,
            speculative_config={
                "method": method,
                "model": str(draft),
                "num_speculative_tokens": k,
                **keys,
            },
        )
        return engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())

    return make


def test_an_eagle3_draft_has_room_for_k_tokens_behind_the_last(speculative, tmp_path):
    config = speculative(tiny_draft(tmp_path))
    assert config.draft_model_config.max_model_len == LENGTH + K
    assert config.target_model_config.max_model_len == LENGTH


def test_a_length_that_the_user_gave_the_draft_stays(speculative, tmp_path):
    config = speculative(tiny_draft(tmp_path), max_model_len=128)
    assert config.draft_model_config.max_model_len == 128


@pytest.mark.parametrize("family", ["dflash", "p-eagle"])
def test_drafts_in_parallel_have_none(speculative, tmp_path, family):
    draft = valid_draft(family)
    keys = {"parallel_drafting": True} if family == "p-eagle" else {}
    config = speculative(write(draft, tmp_path / "draft"), draft.method, draft.k, **keys)
    assert config.draft_model_config.max_model_len == LENGTH
