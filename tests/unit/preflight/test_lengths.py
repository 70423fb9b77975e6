"""Room for drafts at the end of max_model_len, on vLLM's own EngineArgs."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import tiny_draft, write_target
from tests.support.described import problems
from tests.support.drafts import inspect, valid_draft, write
from vllm_eagle_ext import plugin
from vllm_eagle_ext.engine_rules.speculative import one_length_stops_no_drafts
from vllm_eagle_ext.engine_rules.target import padding_is_cut_off

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


@pytest.mark.parametrize(
    ("keys", "engine", "count"),
    [
        ({"max_model_len": 128}, {}, 1),
        ({"max_model_len": 128}, {"max_model_len": None}, 1),
        ({"max_model_len": LENGTH}, {}, 0),
        ({"max_model_len": 128}, {"runner": "v2"}, 0),
        ({}, {}, 0),
    ],
)
def test_a_shorter_length_of_the_draft_is_warned_of(tmp_path, keys, engine, count):
    """V1 holds it against the longest request of a step, and then drafts for none."""
    case = inspect(valid_draft("native"), tmp_path).case
    described = {"max_model_len": LENGTH, "runner": "v1"} | engine
    found = problems(one_length_stops_no_drafts, case, speculative=keys, **described)
    assert [one.value for one in found] == [128] * count


@pytest.mark.parametrize(
    ("family", "rows", "asked", "count"),
    [
        ("dflash", 160, True, 1),
        ("dflash", 160, False, 0),
        ("dflash", 128, True, 0),
        ("native", 160, True, 0),
    ],
)
def test_a_shared_head_with_padding_is_read_whole(tmp_path, family, rows, asked, count):
    case = inspect(valid_draft(family), tmp_path, target={"vocab_size": rows}).case
    keys = {"use_local_argmax_reduction": asked}
    assert len(problems(padding_is_cut_off, case, speculative=keys)) == count


def test_a_start_warns_of_it(speculative, tmp_path, vllm_log):
    speculative(tiny_draft(tmp_path), max_model_len=100)  # the log has each message once
    assert len(vllm_log.containing("drafts for no request at all")) == 1


@pytest.mark.parametrize("family", ["dflash", "p-eagle"])
def test_drafts_in_parallel_have_none(speculative, tmp_path, family):
    draft = valid_draft(family)
    keys = {"parallel_drafting": True} if family == "p-eagle" else {}
    config = speculative(write(draft, tmp_path / "draft"), draft.method, draft.k, **keys)
    assert config.draft_model_config.max_model_len == LENGTH
