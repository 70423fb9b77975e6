"""Our gauges, by vLLM's own engine arguments: what is shown, of whom, and when nothing is."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, Gauge

from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET, ngram
from vllm_eagle_ext import __version__, plugin
from vllm_eagle_ext.memory.device import Device
from vllm_eagle_ext.memory.state_scheme import choose
from vllm_eagle_ext.start import metrics


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
    assert samples(metrics.STATE_BLOCKS) == {}


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
@pytest.mark.parametrize(("scheme", "blocks"), [("replay", 2), ("per_token", 8)])
def test_the_blocks_of_a_state(scheme, blocks):
    options = {"additional_config": {"eagle_ext": {"hybrid_state": scheme}}}
    configure(TARGET, speculative_config=ngram(7), enable_prefix_caching=False, **options)
    assert samples(metrics.STATE_BLOCKS) == {(("model_name", "tiny"), ("state", scheme)): blocks}
    assert samples(metrics.DRAFT_INFO) == {}  # a method without a draft has a state alone


GPUS = [
    ({"release": "0.33"}, 3),
    ({"release": "0.32"}, 2),
    ({"release": "0.33", "gdn_prefill": "triton"}, 2),
    ({"release": "0.33", "capability": (8, 0)}, 2),
]


@pytest.mark.promise("gauges follow release, device and prefill backend")
@pytest.mark.parametrize(("facts", "blocks"), GPUS)
def test_the_state_on_a_gpu(facts, blocks):
    from vllm.engine.arg_utils import EngineArgs

    device = Device(**({"capability": (9, 0), "key_dim": 128} | facts))
    choice = choose("replay", k=15, device=device, prefix_caching=True, obstacles=[])
    arguments = EngineArgs(model=str(TARGET), served_model_name="tiny", max_model_len=1024)
    metrics.publish_state(arguments, arguments.create_model_config(), choice)
    assert list(samples(metrics.STATE_BLOCKS).values()) == [blocks]
