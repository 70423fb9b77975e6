"""What a speculative config makes of lengths, texts and requests: refused, warned of, or served."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.checkpoints import tiny_draft, write_target
from tests.support.described import changed, problems, tiny_config
from tests.support.drafts import inspect, valid_draft, write
from tests.unit.start.configs import speculative_config
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.start.apply import _set_for_a_start, take_back
from vllm_eagle_ext.start.rules.speculative import (
    adapters_meet_their_rows,
    one_length_stops_no_drafts,
    texts_stay_the_targets,
)
from vllm_eagle_ext.start.rules.target import padding_is_cut_off

LENGTH, K = 256, 4
ARGUMENTS = {"max_model_len": LENGTH}


def test_an_eagle3_draft_has_room_for_k_tokens_behind_the_last(target, tmp_path):
    config = speculative_config(target, tiny_draft(tmp_path), arguments=ARGUMENTS)
    assert config.draft_model_config.max_model_len == LENGTH + K
    assert config.target_model_config.max_model_len == LENGTH


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
    fired = problems(one_length_stops_no_drafts, config, inspect(valid_draft("native"), tmp_path).case)
    assert [problem.value for problem in fired] == [128] * count


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


@pytest.mark.parametrize(
    ("method", "count"), [("synthetic", 1), ("fly", 1), ("standard", 0), ("block", 0), (None, 0)]
)
def test_other_texts_are_warned_of(method, count, tmp_path):
    config = changed(tiny_config(), speculative_config__rejection_sample_method=method)
    fired = problems(texts_stay_the_targets, config, inspect(valid_draft("native"), tmp_path).case)
    assert [problem.value for problem in fired] == [method] * count


@pytest.mark.parametrize(
    ("modules", "runs_v2", "count"),
    [
        ({"target_modules": None}, True, 1),
        ({"target_modules": ["q_proj", "lm_head"]}, True, 1),
        ({"target_modules": ["q_proj"]}, True, 0),
        ({"target_modules": None}, False, 0),
        (None, True, 0),
    ],
)
def test_adapters_of_the_output_layer_on_v2(modules, runs_v2, count, tmp_path):
    adapters = modules and SimpleNamespace(**modules)
    config = changed(tiny_config(), lora_config=adapters, use_v2_model_runner=runs_v2)
    case = inspect(valid_draft("native"), tmp_path).case
    assert len(problems(adapters_meet_their_rows, config, case)) == count


@pytest.fixture
def pair(tmp_path):
    return write_target(tmp_path / "target"), tiny_draft(tmp_path / "draft")


@pytest.fixture
def start(pair, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    target, draft = pair
    return lambda **arguments: speculative_config(target, draft, arguments=arguments)


def write_defaults(pair, **defaults) -> None:
    Path(pair[0], "generation_config.json").write_text(json.dumps(defaults))


def test_a_min_p_by_default_is_warned_of(pair, start, vllm_log):
    """Each request that names nothing would be refused."""
    write_defaults(pair, temperature=0.6, min_p=0.05)
    start()
    (record,) = vllm_log.containing("min_p of the target")
    assert record.levelname == "WARNING"
    for remedy in ("--generation-config vllm", "--override-generation-config"):
        assert remedy in record.getMessage()


SERVED = [
    ({"temperature": 0.6}, {}),
    ({"min_p": 0.0}, {}),
    ({"min_p": 0.05}, {"generation_config": "vllm"}),
    ({"min_p": 0.05}, {"override_generation_config": {"min_p": 0}}),
    ({"min_p": "much"}, {}),  # for vLLM to refuse
]


@pytest.mark.parametrize(("defaults", "asked"), SERVED, ids=str)
def test_defaults_that_are_served(pair, start, vllm_log, defaults, asked):
    write_defaults(pair, **defaults)
    start(**asked)
    assert not vllm_log.containing("min_p of the target")


def test_prompt_embeddings_on_v1_are_refused(start):
    with pytest.raises(SpeculativeConfigError, match=r"enable_prompt_embeds is True.*V1 runner"):
        start(enable_prompt_embeds=True)
    assert "EagleExt" in start().draft_model_config.architecture


def test_a_field_that_is_set_twice_is_given_back_as_it_was(pair):
    """Another plugin's wrapper may hide ours, and the preflight then runs twice in a start."""
    from vllm.engine.arg_utils import EngineArgs

    for own in (None, "theirs", "ours"):
        engine_args = EngineArgs(model=str(pair[0]), scheduler_cls=own)
        for _ in "ab":
            _set_for_a_start(engine_args, "scheduler_cls", "ours")
        assert engine_args.scheduler_cls == "ours"
        take_back(engine_args)
        assert engine_args.scheduler_cls == own


SCHEDULE = "num_speculative_tokens_per_batch_size"


@pytest.fixture
def configure(monkeypatch, tmp_path, target):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    draft = write(valid_draft("p-eagle"), tmp_path / "draft")

    def make(schedule, **arguments):
        keys = {SCHEDULE: schedule, "parallel_drafting": True}
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
