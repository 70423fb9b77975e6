"""What the preflight makes of `draft_off`, on vLLM's own EngineArgs."""

from __future__ import annotations

import logging

import pytest

from tests.support.drafts import inspect, valid_draft
from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET as HYBRID
from vllm_eagle_ext import log, plugin
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.preflight.sleep_rules import SleepEngine, has_zero, why_awake
from vllm_eagle_ext.resolved_marker import require_marker

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")
EAGLE3 = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4}
DFLASH = {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": 7}
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, 7], [5, 256, 0]]}
AUTO = {"draft_length": "auto"}
ENGINE = {
    "has_draft": True, "caches_without_attention": True, "runner": "v1", "on_cpu": True,
    "prefix_caching": False,
}  # fmt: skip


@pytest.fixture
def configure(monkeypatch):
    """Whether the draft may sleep, as its model class will read it."""
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    log.log_once.cache_clear()
    plugin.register()

    def make(options, speculative=DFLASH, target=HYBRID, **arguments):
        engine_args = EngineArgs(
            model=str(target),
            speculative_config=speculative and dict(speculative),
            additional_config={"eagle_ext": options},
            **{"enable_prefix_caching": False, "skip_tokenizer_init": True} | arguments,
        )
        model_config = engine_args.create_model_config()
        config = engine_args.create_speculative_config(model_config, ParallelConfig())
        return config and require_marker(config.draft_model_config.hf_config)["may_sleep"]

    return make


@pytest.mark.parametrize(
    ("options", "speculative", "target", "sleeps"),
    [
        (AUTO, DFLASH, HYBRID, True),
        (AUTO | {"draft_off": "sleep"}, DFLASH, HYBRID, True),
        (AUTO | {"draft_off": "keep"}, DFLASH, HYBRID, False),
        (AUTO | {"draft_lengths": [3, 7]}, DFLASH, HYBRID, False),
        ({}, DFLASH, HYBRID, False),
        ({}, DFLASH | SCHEDULE, HYBRID, True),
        (AUTO, EAGLE3, TINY / "target", True),
    ],
    ids=["auto", "asked", "kept", "no zero", "fixed", "vLLM's schedule", "eagle3"],
)
def test_what_a_draft_does(configure, options, speculative, target, sleeps):
    assert configure(options, speculative, target) is sleeps


@pytest.mark.parametrize("caching", [False, True])
def test_prefix_caching_lets_a_draft_sleep_beside_layers_of_one_kind(configure, caching):
    assert configure(AUTO, EAGLE3, TINY / "target", enable_prefix_caching=caching)


def test_prefix_caching_keeps_a_draft_awake_beside_layers_of_several_kinds(configure, caplog):
    windows = {"layer_types": ["full_attention", "sliding_attention"] * 5, "sliding_window": 64}
    with caplog.at_level(logging.INFO):
        mixed = {"hf_overrides": windows, "enable_prefix_caching": True}
        assert not configure(AUTO, EAGLE3, TINY / "target", **mixed)
    assert any("beside layers of several kinds" in record.getMessage() for record in caplog.records)
    assert configure(AUTO, EAGLE3, TINY / "target", **mixed | {"enable_prefix_caching": False})
    with pytest.raises(SpeculativeConfigError, match="beside layers of several kinds"):
        configure(AUTO | {"draft_off": "sleep"}, EAGLE3, TINY / "target", **mixed)


def test_sleep_is_refused_before_anything_is_loaded(configure):
    with pytest.raises(SpeculativeConfigError, match="without a draft that this package") as caught:
        configure({"draft_off": "sleep"}, None, TINY / "target")
    assert "draft_off is 'sleep'" in str(caught.value)
    assert "leave additional_config.eagle_ext.draft_off out" in str(caught.value)


@pytest.mark.parametrize(
    ("family", "layers", "follows"),
    [
        ("native", 1, True), ("post-norm", 1, True), ("gated", 1, True), ("qwen3", 1, True),
        ("native", 2, False), ("mla", 1, False), ("p-eagle", 1, False), ("dflash", 2, True),
    ],
)  # fmt: skip
def test_whose_cache_follows_from_the_targets_states(family, layers, follows, tmp_path):
    draft = valid_draft(family)
    draft.config["num_hidden_layers"] = layers
    spec = inspect(draft, tmp_path).spec
    assert spec.num_layers == layers
    assert spec.caches_without_attention is follows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"has_draft": False}, "without a draft"),
        ({"caches_without_attention": False}, "take a whole pass"),
        ({"runner": "v2"}, "V2 runner"),
        ({"on_cpu": False}, "GPU's V1 runner"),
        ({"prefix_caching": True}, None),
        ({"mixed_caches": True}, None),
        (
            {"prefix_caching": True, "mixed_caches": True},
            "prefix caching beside layers of several kinds",
        ),
        ({"kv_connector": "LMCacheConnector"}, "with LMCacheConnector"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_why_a_draft_cannot_sleep(changes, words):
    reason = why_awake(SleepEngine(**ENGINE | changes))
    assert reason is None if words is None else words in reason


@pytest.mark.parametrize("off", ["keep", "sleep"])
def test_an_option_that_nothing_reads_is_warned_of(configure, caplog, off):
    with caplog.at_level(logging.WARNING):
        assert configure({"draft_off": off}) is False
    assert any("it is not used here" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("schedule", "zero"),
    [
        (None, False),
        ([[1, 8, 2]], False),
        ([[1, 4, 2], [5, 8, 0]], True),
        ([(1, 1, 0)], True),
        ("0", False),
    ],
)
def test_a_schedule_that_turns_drafting_off(schedule, zero):
    assert has_zero(schedule) is zero
