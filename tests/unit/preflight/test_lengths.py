"""Room for drafts at the end of max_model_len, on vLLM's own EngineArgs."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import tiny_draft
from tests.support.described import changed, problems, tiny_config
from tests.support.drafts import inspect, valid_draft, write
from tests.unit.preflight.configs import speculative_config
from vllm_eagle_ext.engine_rules.speculative import one_length_stops_no_drafts
from vllm_eagle_ext.engine_rules.target import padding_is_cut_off

LENGTH, K = 256, 4
ARGUMENTS = {"max_model_len": LENGTH}


def test_an_eagle3_draft_has_room_for_k_tokens_behind_the_last(target, tmp_path):
    config = speculative_config(target, tiny_draft(tmp_path), arguments=ARGUMENTS)
    assert config.draft_model_config.max_model_len == LENGTH + K
    assert config.target_model_config.max_model_len == LENGTH


def test_a_length_that_the_user_gave_the_draft_stays_with_a_warning(target, tmp_path, vllm_log):
    config = speculative_config(target, tiny_draft(tmp_path), arguments=ARGUMENTS, max_model_len=128)
    assert config.draft_model_config.max_model_len == 128
    assert len(vllm_log.containing("drafts for no request at all")) == 1


@pytest.mark.parametrize(
    ("length", "runs_v2", "count"),
    [(128, False, 1), (LENGTH, False, 0), (128, True, 0), (None, False, 0)],
)
def test_a_shorter_length_of_the_draft_is_warned_of(tmp_path, length, runs_v2, count):
    """V1 holds it against the longest request of a step, and then drafts for none."""
    config = changed(
        tiny_config(), model_config__max_model_len=LENGTH, speculative_config__max_model_len=length,
        use_v2_model_runner=runs_v2,
    )  # fmt: skip
    found = problems(one_length_stops_no_drafts, config, inspect(valid_draft("native"), tmp_path).case)
    assert [problem.value for problem in found] == [128] * count


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
    config = changed(tiny_config(), speculative_config__use_local_argmax_reduction=asked)
    assert len(problems(padding_is_cut_off, config, case)) == count


@pytest.mark.parametrize("family", ["dflash", "p-eagle"])
def test_drafts_in_parallel_have_none(target, tmp_path, family):
    draft = valid_draft(family)
    keys = {"parallel_drafting": True} if family == "p-eagle" else {}
    config = speculative_config(
        target, write(draft, tmp_path / "draft"), arguments=ARGUMENTS, method=draft.method,
        num_speculative_tokens=draft.k, **keys,
    )  # fmt: skip
    assert config.draft_model_config.max_model_len == LENGTH
