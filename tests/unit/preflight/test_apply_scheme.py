"""The choice on real engine configs, without an engine."""

from __future__ import annotations

import pytest

from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET, ngram
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.log import log_once

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")


@pytest.fixture
def configure(monkeypatch):
    import vllm.plugins
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)

    def make(k=7, target=TARGET, **changes):
        options = changes.pop("options", {})
        arguments = {"enable_prefix_caching": False, "max_model_len": 1024} | changes
        return EngineArgs(
            model=str(target),
            speculative_config=ngram(k),
            additional_config={"eagle_ext": options},
            **arguments,
        ).create_engine_config()

    return make


def test_replay_changes_the_architecture_and_nothing_else(configure):
    stock, ours = (configure(options={"hybrid_state": state}) for state in ("per_token", "replay"))
    assert stock.model_config.architecture == "Qwen3_5ForCausalLM"
    assert ours.model_config.architecture == "Qwen3_5EagleExtForCausalLM"
    assert ours.model_config.is_hybrid
    assert ours.cache_config.mamba_ssm_cache_dtype == stock.cache_config.mamba_ssm_cache_dtype
    assert ours.model_config.hf_text_config.rope_parameters == (
        stock.model_config.hf_text_config.rope_parameters
    )


@pytest.mark.parametrize(("k", "replays"), [(2, False), (3, True)])
def test_auto(configure, vllm_log, k, replays):
    assert ("EagleExt" in configure(k).model_config.architecture) is replays
    (record,) = vllm_log.containing("Recurrent state of")
    assert f"{k} draft tokens" in record.getMessage()


def test_disabled_leaves_the_target_alone(configure):
    config = configure(options={"enabled": False})
    assert config.model_config.architecture == "Qwen3_5ForCausalLM"


def test_chunked_kernels_are_refused_where_they_cannot_run(configure):
    with pytest.raises(HybridStateError, match=r"replay_kernels.*'chunked'.*on a CPU"):
        configure(options={"replay_kernels": "chunked"})
    for kernels in ("auto", "sequential"):
        config = configure(options={"replay_kernels": kernels})
        assert config.model_config.hf_config.eagle_ext["replay_kernels"] == kernels


def test_prefix_caching_on_v1_is_refused_before_anything_is_loaded(configure):
    with pytest.raises(HybridStateError, match="no-enable-prefix-caching"):
        configure(enable_prefix_caching=True)


def test_what_replay_cannot_do_is_said(configure):
    with pytest.raises(HybridStateError, match="pipeline_parallel_size is 2"):
        configure(options={"hybrid_state": "replay"}, pipeline_parallel_size=2)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_cpu_replays_in_bfloat16_alone(configure, vllm_log, dtype):
    """In float16 vLLM 0.33 would hand each layer back to itself, without end."""
    log_once.cache_clear()
    assert configure(dtype=dtype).model_config.architecture == "Qwen3_5ForCausalLM"
    (record,) = vllm_log.containing("Recurrent state of")
    assert f"replay is not possible: dtype is '{dtype}'" in record.getMessage()
    with pytest.raises(HybridStateError, match=f"dtype is '{dtype}'.*bfloat16 on a CPU"):
        configure(dtype=dtype, options={"hybrid_state": "replay"})


def test_replay_wants_a_target_that_has_states(configure):
    with pytest.raises(HybridStateError, match="LlamaForCausalLM"):
        configure(target=TINY / "target", options={"hybrid_state": "replay"})
    assert configure(target=TINY / "target").model_config.architecture == "LlamaForCausalLM"
