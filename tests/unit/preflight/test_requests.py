"""Requests that vLLM refuses or dies of with a draft: told at a start and by `vllm-eagle check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext import plugin
from vllm_eagle_ext.checkpoint.findings import Severity
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.preflight.apply_engine import _set_for_a_start, take_back
from vllm_eagle_ext.preflight.check import CheckRequest, run_check

K = 4
MIN_P, EMBEDS = "default_requests_are_served", "prompts_have_tokens"


@pytest.fixture
def pair(tmp_path):
    return write_target(tmp_path / "target"), tiny_draft(tmp_path / "draft")


@pytest.fixture
def start(pair, monkeypatch):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    target, draft = pair
    drafts = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": K}

    def make(speculative=drafts, **arguments):
        engine_args = EngineArgs(
            model=str(target), skip_tokenizer_init=True, speculative_config=speculative, **arguments
        )
        return engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())

    return make


@pytest.fixture
def checked(pair):
    target, draft = pair

    def findings(platform="cuda", **engine):
        asked = {"draft": str(draft), "target": str(target), "k": K, "method": None, "options": {}}
        found = run_check(CheckRequest(**asked, platform=platform, engine=engine)).inspection.findings
        return {one.rule: one for one in found}

    return findings


def sampling(pair, **defaults) -> None:
    Path(pair[0], "generation_config.json").write_text(json.dumps(defaults))


def test_a_min_p_by_default_is_warned_of(pair, start, checked, vllm_log):
    """Each request that names nothing would be refused."""
    sampling(pair, temperature=0.6, min_p=0.05)
    start()
    (record,) = vllm_log.containing("min_p of the target")
    assert record.levelname == "WARNING"
    found = checked()[MIN_P]
    assert (found.severity, found.problem.value) == (Severity.WARNING, 0.05)
    for remedy in ("--generation-config vllm", "--override-generation-config"):
        assert remedy in record.getMessage()
        assert remedy in found.problem.remedy


SERVED = [
    ({"temperature": 0.6}, {}),
    ({"min_p": 0.0}, {}),
    ({"min_p": 0.05}, {"generation_config": "vllm"}),
    ({"min_p": 0.05}, {"override_generation_config": {"min_p": 0}}),
    ({"min_p": "much"}, {}),  # for vLLM to refuse
]


@pytest.mark.parametrize(("defaults", "asked"), SERVED, ids=str)
def test_defaults_that_are_served(pair, start, checked, vllm_log, defaults, asked):
    sampling(pair, **defaults)
    start(**asked)
    assert not vllm_log.containing("min_p of the target")
    assert MIN_P not in checked(**asked)


def test_an_overridden_min_p_is_warned_of(start, checked, vllm_log):
    asked = {"override_generation_config": {"min_p": 0.2}}
    start(**asked)
    assert vllm_log.containing("min_p of the target")
    assert checked(**asked)[MIN_P].problem.value == 0.2


@pytest.mark.parametrize("text", ["{", "[]", '"min_p"', "\xff"])
def test_a_file_of_defaults_that_cannot_be_read_says_nothing(pair, checked, text):
    """vLLM leaves it out, too."""
    Path(pair[0], "generation_config.json").write_text(text, encoding="latin-1")
    assert MIN_P not in checked()


def test_prompt_embeddings_on_v1_are_refused(start, checked):
    with pytest.raises(SpeculativeConfigError, match=r"enable_prompt_embeds is True.*V1 runner"):
        start(enable_prompt_embeds=True)
    assert checked("cpu", enable_prompt_embeds=True)[EMBEDS].severity is Severity.ERROR
    start(None, enable_prompt_embeds=True)
    start()
    assert EMBEDS not in checked("cpu")


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
