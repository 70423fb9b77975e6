"""Requests that vLLM refuses or dies of with a draft: told at a start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.checkpoints import tiny_draft, write_target
from tests.unit.preflight.configs import speculative_config
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.preflight.apply_engine import _set_for_a_start, take_back


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


def test_an_overridden_min_p_is_warned_of(start, vllm_log):
    start(override_generation_config={"min_p": 0.2})
    assert vllm_log.containing("min_p of the target")


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
