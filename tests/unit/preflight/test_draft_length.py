"""What the preflight makes of `draft_length`, on vLLM's own EngineArgs."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import write_target
from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET as HYBRID
from tests.support.hybrid import ngram
from vllm_eagle_ext import plugin
from vllm_eagle_ext.errors import OptionsError, SpeculativeConfigError
from vllm_eagle_ext.preflight.apply_draft_length import SCHEDULER

AUTO = {"draft_length": "auto"}
EAGLE3 = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4}
DFLASH = {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": 7}


@pytest.fixture
def configure(monkeypatch):
    """EngineArgs and the SpeculativeConfig that they come to."""
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    plugin.register()

    def make(options, speculative=EAGLE3, target=TINY / "target", runner="v1", **arguments):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(runner == "v2")))
        engine_args = EngineArgs(
            model=str(target),
            speculative_config=speculative and dict(speculative),
            additional_config={"eagle_ext": options},
            **{"enable_prefix_caching": False, "skip_tokenizer_init": True} | arguments,
        )
        model_config = engine_args.create_model_config()
        return engine_args, engine_args.create_speculative_config(model_config, ParallelConfig())

    return make


@pytest.mark.parametrize(
    ("speculative", "asked", "menu"),
    [
        (EAGLE3, None, [0, 1, 2, 4]), (EAGLE3, [4, 0], [0, 4]), (DFLASH, None, [0, 1, 3, 7]),
        (DFLASH, [2, 7], [2, 7]),
    ],
)  # fmt: skip
def test_the_scheduler_and_the_menu_are_set(configure, speculative, asked, menu):
    options = AUTO | ({"draft_lengths": asked} if asked else {})
    target = HYBRID if speculative is DFLASH else TINY / "target"
    engine_args, config = configure(options, speculative, target)
    assert engine_args.scheduler_cls == SCHEDULER
    assert [k for _, _, k in config.num_speculative_tokens_per_batch_size] == menu


def test_the_engines_config_has_them(configure):
    """vLLM reads the scheduler after the speculative config; asked twice, the answer is the same."""
    engine_args, _ = configure(AUTO)
    for _ in range(2):
        made = engine_args.create_engine_config()
        assert made.scheduler_config.scheduler_cls == SCHEDULER
        assert made.scheduler_config.get_scheduler_cls().__name__ == "build_scheduler"
        assert made.speculative_config.uses_dynamic_speculative_decoding()


@pytest.mark.parametrize(
    ("option", "speculative"),
    [
        ({}, EAGLE3),
        ({}, EAGLE3 | {"num_speculative_tokens_per_batch_size": [[1, 8, 2]]}),
        ({"draft_length": "fixed"}, EAGLE3),
        ({"enabled": False}, None),
        ({}, None),
    ],
    ids=["no option", "vLLM's schedule", "fixed", "turned off", "no draft"],
)
def test_arguments_used_again_without_the_option_have_vllms_scheduler(configure, option, speculative):
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    engine_args, _ = configure(AUTO)
    engine_args.additional_config = {"eagle_ext": option}
    engine_args.speculative_config = speculative and dict(speculative)
    made = engine_args.create_engine_config()
    assert engine_args.scheduler_cls is None
    assert made.scheduler_config.get_scheduler_cls() in (Scheduler, AsyncScheduler)


def test_without_the_option_nothing_is_set(configure):
    engine_args, config = configure({})
    assert engine_args.scheduler_cls is None
    assert config.num_speculative_tokens_per_batch_size is None


@pytest.mark.parametrize(
    ("options", "changes", "kind", "words"),
    [
        ({"draft_lengths": [0, 4]}, {}, OptionsError, ['"draft_length": "auto"', "[0, 4]"]),
        (AUTO | {"draft_lengths": [0, 5]}, {}, OptionsError, ["[0, 5]", "lengths from 0 to 4"]),
        (AUTO | {"draft_lengths": [0, 2]}, {}, OptionsError, ["[0, 2]", "with 4 among them"]),
        (AUTO | {"draft_lengths": [4]}, {}, OptionsError, ["[4]", "at least one shorter"]),
        (AUTO, {"speculative": None}, OptionsError, ['"fixed" without a draft', "eagle3"]),
        (AUTO, {"speculative": ngram(4)}, OptionsError, ['"fixed" without a draft']),
        (
            AUTO, {"scheduler_cls": "my.Scheduler"}, SpeculativeConfigError,
            ["--scheduler-cls is 'my.Scheduler'", "leave the flag out"],
        ),
        (AUTO, {"data_parallel_size": 2}, SpeculativeConfigError, ["data_parallel_size is 2", "wait"]),
        (
            AUTO, {"pipeline_parallel_size": 2}, SpeculativeConfigError,
            ["pipeline_parallel_size is 2", "--tensor-parallel-size"],
        ),
        (
            AUTO, {"speculative": EAGLE3 | {"num-speculative-tokens-per-batch-size": [[1, 8, 2]]}},
            SpeculativeConfigError, ["num_speculative_tokens_per_batch_size is [[1, 8, 2]]"],
        ),
        (
            AUTO, {"speculative": EAGLE3 | {"enable_adaptive_verification": True}},
            SpeculativeConfigError, ["enable_adaptive_verification is True"],
        ),
        (
            AUTO, {"runner": "v2", "max_num_seqs": 3}, SpeculativeConfigError,
            ["--max-num-seqs is 3", "at least 4"],
        ),
    ],
)  # fmt: skip
def test_refused_with_field_value_and_remedy(configure, options, changes, kind, words):
    with pytest.raises(kind) as caught:
        configure(options, **changes)
    assert caught.value.remedy
    for word in words:
        assert word in str(caught.value)


def test_shorter_drafts_of_parallel_eagle3_are_refused(configure, tmp_path):
    """V1 always makes K of them, and reads them as rows of fewer; with 0 it reads none."""
    target = write_target(tmp_path / "target")
    draft = {"method": "eagle3", "model": str(write(valid_draft("p-eagle"), tmp_path / "draft"))}
    parallel = draft | {"num_speculative_tokens": 4, "parallel_drafting": True}
    key = "num_speculative_tokens_per_batch_size"
    for served in ({}, {key: [[1, 8, 4], [9, 32, 0]]}):
        configure({}, parallel | served, target)
    configure(AUTO | {"draft_lengths": [0, 4]}, parallel, target)
    with pytest.raises(OptionsError, match=r"draft_lengths is \[0, 1, 2, 4\].*\[0, 4\]"):
        configure(AUTO, parallel, target)
    with pytest.raises(SpeculativeConfigError, match=r"batch_size is \[\[1, 8, 4\], \[9, 32, 2\]\]"):
        configure({}, parallel | {key: [[1, 8, 4], [9, 32, 2]]}, target)


def test_v1_on_a_gpu_is_refused(configure, monkeypatch):
    """vLLM would give up full CUDA graphs; on a CPU it has none."""
    from vllm_eagle_ext.preflight import apply_draft_length

    configure(AUTO)
    monkeypatch.setattr(apply_draft_length, "_on_cpu", lambda: False)
    with pytest.raises(SpeculativeConfigError, match="VLLM_USE_V2_MODEL_RUNNER=1"):
        configure(AUTO)
    configure(AUTO, runner="v2")


@pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")
def test_turned_off_with_the_package(configure):
    engine_args, _ = configure(AUTO | {"enabled": False}, None)
    assert engine_args.scheduler_cls is None
