"""Our gauges, by vLLM's own engine arguments: what is shown, of whom, and when nothing is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from prometheus_client import REGISTRY, Gauge

from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET, ngram
from tests.unit.memory.configs import TARGETS
from vllm_eagle_ext import __version__, compat, metrics, plugin
from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.engine_rules.vllm_config import device_of
from vllm_eagle_ext.memory.footprint import CacheSetting, footprint
from vllm_eagle_ext.memory.geometry import Attention, read_target


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    plugin.register()
    yield
    metrics.withdraw()


def configure(target=TINY / "target", **arguments):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    draft = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4}
    given = {"speculative_config": draft, "served_model_name": "tiny", "max_model_len": 1024}
    engine_args = EngineArgs(model=str(target), **(given | arguments))
    return engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())


def samples(name):
    return {
        tuple(sample.labels.items()): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_draft_info():
    configure()
    ((labels, value),) = samples(metrics.DRAFT_INFO).items()
    assert value == 1
    assert dict(labels) == {
        "model_name": "tiny",
        "draft": str(TINY / "postnorm"),
        "family": "post-norm EAGLE-3",
        "drafter": "Eagle3EagleExtLlamaForCausalLM",
        "aux_layers": "2,4,6,8,10",
        "rule": "ids nested in eagle_config name the layers whose output is read, which is the input of "
        "layer id + 1",
        "num_speculative_tokens": "4",
        "version": __version__,
    }
    assert samples(metrics.STATE_BYTES) == {}


def test_a_second_engine_replaces_the_first():
    configure(served_model_name="first")
    configure(served_model_name="second")
    assert [dict(labels)["model_name"] for labels in samples(metrics.DRAFT_INFO)] == ["second"]
    configure(speculative_config=None)
    assert samples(metrics.DRAFT_INFO) == {}


@pytest.mark.parametrize(
    "changes",
    [{"disable_log_stats": True}, {"additional_config": {"eagle_ext": {"enabled": False}}}],
    ids=str,
)
def test_nothing_is_shown_where_nothing_was_asked_for(changes):
    configure(**changes)
    assert samples(metrics.DRAFT_INFO) == {}


def test_vllm_leaves_ours_when_it_clears_its_own():
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    configure()
    unregister_vllm_metrics()
    assert len(samples(metrics.DRAFT_INFO)) == 1


def test_a_gauge_that_cannot_be_made_stops_nothing(vllm_log):
    taken = Gauge(metrics.DRAFT_INFO, "somebody else's")
    try:
        assert "EagleExt" in configure().draft_model_config.architecture
    finally:
        REGISTRY.unregister(taken)
    assert vllm_log.containing("missing in /metrics")


@pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")
@pytest.mark.parametrize("scheme", ["replay", "per_token"])
@pytest.mark.parametrize(
    ("changes", "kv_bytes", "state_bytes"),
    [
        ({}, 2, 4),
        ({"mamba_ssm_cache_dtype": "bfloat16"}, 2, 2),
        ({"kv_cache_dtype": "fp8"}, 1, 4),
    ],
    ids=["as published", "16-bit states", "fp8 keys"],
)
def test_state_is_what_the_plan_says(scheme, changes, kv_bytes, state_bytes):
    options = {"additional_config": {"eagle_ext": {"hybrid_state": scheme}}}
    draft = {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": 7}
    configure(TARGET, speculative_config=draft, enable_prefix_caching=False, **options, **changes)
    config = {
        "num_hidden_layers": 8, "full_attention_interval": 4, "head_dim": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4, "dtype": "bfloat16",
        "mamba_ssm_dtype": {2: "bfloat16", 4: "float32"}[state_bytes],
    }  # fmt: skip
    setting = CacheSetting(k=7, max_model_len=1024, prefix_caching=False, cpu=True)
    layers = [Attention(layers=2, kv_heads=2, head_dim=64, element_bytes=kv_bytes)]
    expected = footprint(read_target(config, kv_bytes=kv_bytes), scheme, setting, layers)
    key = (("model_name", "tiny"), ("state", scheme))
    assert samples(metrics.STATE_BYTES) == {key: expected.state}
    assert samples(metrics.STATE_BLOCKS) == {key: {"replay": 2, "per_token": 8}[scheme]}


def test_the_engine_built_here_has_the_last_word():
    configure(TARGET, speculative_config=ngram(7), enable_prefix_caching=False)
    metrics.correct_state(3 << 20, 5)
    assert list(samples(metrics.STATE_BYTES).values()) == [3 << 20]
    assert list(samples(metrics.STATE_BLOCKS).values()) == [5]


def test_a_worker_without_gauges_is_not_given_any():
    metrics.correct_state(3 << 20, 5)
    assert samples(metrics.STATE_BYTES) == samples(metrics.STATE_BLOCKS) == {}


GPUS = [
    ({}, "0.33.0", (9, 0), 3, 960),
    ({}, "0.32.0", (9, 0), 2, 928),
    ({"additional_config": {"gdn_prefill_backend": "triton"}}, "0.33.0", (9, 0), 2, 928),
    ({}, "0.33.0", (8, 0), 2, 928),
    ({"block_size": 256}, "0.33.0", (8, 0), 2, 1024),
]


@pytest.mark.promise("gauges follow release, device and prefill backend")
@pytest.mark.parametrize(("changes", "release", "capability", "blocks", "tokens"), GPUS)
def test_the_state_on_a_gpu(monkeypatch, changes, release, capability, blocks, tokens):
    """By the release, the device and the prefill backend that this start has; Qwen3.6-27B, K = 15."""
    gpu = SimpleNamespace(
        is_cpu=lambda: False, is_cuda=lambda: True, get_cuda_runtime_major=lambda: 13,
        get_device_capability=lambda: SimpleNamespace(major=capability[0], minor=capability[1]),
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("vllm.platforms.current_platform", gpu)
        patch.setattr(compat, "vllm_version", lambda: release)
        text = SimpleNamespace(to_dict=lambda: text_config(TARGETS["27B"]))
        device = device_of(
            SimpleNamespace(
                additional_config=changes.get("additional_config", {}),
                model_config=SimpleNamespace(hf_text_config=text),
            )
        )
    arguments = SimpleNamespace(
        kv_cache_dtype="auto", tensor_parallel_size=1, mamba_ssm_cache_dtype="auto",
        enable_prefix_caching=True, block_size=changes.get("block_size"),
    )  # fmt: skip
    hf_config = SimpleNamespace(to_dict=lambda: TARGETS["27B"])
    target = SimpleNamespace(
        hf_config=hf_config, max_model_len=32768, dtype=torch.bfloat16,
        get_total_num_kv_heads=lambda: 4, get_head_size=lambda: 256,
    )  # fmt: skip
    speculative = SimpleNamespace(num_speculative_tokens=15, draft_model_config=None)
    state = metrics.state_footprint(arguments, target, speculative, "replay", device)
    assert (state.state_blocks, state.layer_block.tokens) == (blocks, tokens)


def test_a_method_without_a_draft_has_a_state_but_no_draft():
    configure(TARGET, speculative_config=ngram(7), enable_prefix_caching=False)
    assert samples(metrics.DRAFT_INFO) == {}
    assert len(samples(metrics.STATE_BYTES)) == 1
