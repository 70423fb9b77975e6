"""The choice on real engine configs, without an engine."""

from __future__ import annotations

import pytest
import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.platforms import CpuArchEnum, current_platform

from tests.support.described import changed, problems, tiny_config
from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET, dflash, ngram
from tests.support.releases import is_release
from vllm_eagle_ext.draft.findings import Severity
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.log import log_once
from vllm_eagle_ext.start import metrics
from vllm_eagle_ext.start.rules.states import per_token_misreads, states_are_saved_in_time
from vllm_eagle_ext.start.rules.target import target_supports_eagle3

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")


@pytest.fixture
def configure(monkeypatch):
    import vllm.plugins
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)

    def make(k=7, target=TARGET, keys=None, drafts=True, **changes):
        options = changes.pop("options", {})
        arguments = {"enable_prefix_caching": False, "max_model_len": 1024} | changes
        return EngineArgs(
            model=str(target),
            speculative_config=ngram(k) | (keys or {}) if drafts else None,
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


def test_a_target_that_replays_is_asked_for_as_vllms(configure, monkeypatch):
    """An import of its class in the front end may start CUDA."""
    config = configure(options={"hybrid_state": "replay"})
    monkeypatch.setattr(type(config.model_config.registry), "resolve_model_cls", None)
    assert target_supports_eagle3(config)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_auto_replays_on_a_cpu(configure, vllm_log, k):
    assert "EagleExt" in configure(k).model_config.architecture
    (record,) = vllm_log.containing("Recurrent state of")
    assert f"{k} draft token" in record.getMessage()
    assert not vllm_log.containing("fewer than K drafts")


@pytest.mark.skipif(not is_release("0.32"), reason="later kernels take steps of fewer drafts")
def test_one_state_block_per_token_on_a_cpu_is_warned_of(configure, vllm_log):
    configure(2, options={"hybrid_state": "per_token"})
    (record,) = vllm_log.containing("fewer than K drafts")
    assert record.levelname == "WARNING"
    assert "leave the option out" in record.getMessage()


def test_chunked_kernels_are_refused_where_they_cannot_run(configure):
    with pytest.raises(HybridStateError, match=r"replay_kernels.*'chunked'.*on a CPU"):
        configure(options={"replay_kernels": "chunked"})
    for kernels in ("auto", "sequential"):
        config = configure(options={"replay_kernels": kernels})
        assert config.model_config.hf_config.eagle_ext["replay_kernels"] == kernels


@pytest.mark.promise("and where vLLM would crash there, the start is refused")
def test_prefix_caching_on_v1_is_refused_before_anything_is_loaded(configure):
    with pytest.raises(HybridStateError, match="no-enable-prefix-caching"):
        configure(enable_prefix_caching=True)


def test_what_replay_cannot_do_is_said(configure):
    with pytest.raises(HybridStateError, match="pipeline_parallel_size is 2"):
        configure(
            options={"hybrid_state": "replay"}, pipeline_parallel_size=2,
            distributed_executor_backend="mp",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("runner", "target", "warned"), [("v2", TARGET, 1), ("v1", TARGET, 0), ("v2", TINY / "target", 0)]
)
def test_offloading_of_states_on_v2_is_warned_of(configure, runner, target, warned):
    """One state block per draft token is served beside the connector, and has vLLM's fault there."""
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    config = configure(target=target, kv_transfer_config=connector)
    assert "EagleExt" not in config.model_config.architecture
    described = changed(config, use_v2_model_runner=runner == "v2")
    assert len(problems(states_are_saved_in_time, described)) == warned
    assert states_are_saved_in_time.severity is Severity.WARNING


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_cpu_replays_in_bfloat16_alone(configure, vllm_log, dtype):
    """In float16 vLLM 0.33 would hand each layer back to itself, without end."""
    log_once.cache_clear()
    assert configure(dtype=dtype).model_config.architecture == "Qwen3_5ForCausalLM"
    (record,) = vllm_log.containing("Recurrent state of")
    assert f"replay is not possible: dtype is '{dtype}'" in record.getMessage()
    with pytest.raises(HybridStateError, match=f"dtype is '{dtype}'.*bfloat16 on a CPU"):
        configure(dtype=dtype, options={"hybrid_state": "replay"})


@pytest.fixture
def replaying_class(monkeypatch):
    """A class of vLLM's that replays by itself, as a later release may give these targets."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.interfaces import SupportsReplaySSM
    from vllm.model_executor.models.qwen3_5 import Qwen3_5ForCausalLM

    class Replaying(Qwen3_5ForCausalLM, SupportsReplaySSM):
        pass

    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    ModelRegistry.register_model("Qwen3_5ForCausalLM", Replaying)


def test_a_target_that_vllm_replays_is_left_to_it(replaying_class, vllm_log, monkeypatch):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    def served_by(flag, state):
        """As far as this package decides: later vLLM wants a GPU's kernels for the flag."""
        arguments = EngineArgs(
            model=str(TARGET), speculative_config=ngram(7), use_replayssm=flag,
            enable_prefix_caching=False, additional_config={"eagle_ext": {"hybrid_state": state}},
        )  # fmt: skip
        target = arguments.create_model_config()
        arguments.create_speculative_config(target, ParallelConfig())
        return target.architecture

    published: list[str] = []
    monkeypatch.setattr(metrics, "publish_state", lambda *rest: published.append(rest[2].scheme))
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    log_once.cache_clear()
    assert served_by(True, "auto") == "Qwen3_5ForCausalLM"
    (record,) = vllm_log.containing("Recurrent state of")
    assert "left to vLLM, which replays it (--use-replayssm)" in record.getMessage()
    assert "state block" not in record.getMessage()
    assert not published
    assert served_by(False, "auto") == "Qwen3_5EagleExtForCausalLM"


def test_replay_wants_a_target_that_has_states(configure):
    with pytest.raises(HybridStateError, match="LlamaForCausalLM"):
        configure(target=TINY / "target", options={"hybrid_state": "replay"})
    assert configure(target=TINY / "target").model_config.architecture == "LlamaForCausalLM"


SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, 7], [5, 8, 0]]}


@pytest.mark.skipif(not is_release("0.32"), reason="0.33 has repaired its CPU kernels")
@pytest.mark.parametrize(
    "changes", [{"options": {"hybrid_state": "per_token"}}, {"dtype": "float32"}], ids=str
)
def test_a_schedule_is_refused_where_it_would_crash(configure, changes):
    with pytest.raises(HybridStateError, match="num_speculative_tokens_per_batch_size"):
        configure(keys=SCHEDULE, **changes)
    configure(**changes)


def test_a_schedule_is_served_with_replay_alone(configure, vllm_log):
    """A start that chose replay by itself does not fall back, where the other scheme would crash."""
    config = configure(keys=SCHEDULE)
    assert config.speculative_config.num_speculative_tokens_per_batch_size
    assert config.model_config.hf_config.eagle_ext["must_replay"] is is_release("0.32")
    assert configure().model_config.hf_config.eagle_ext["must_replay"] is False
    configure(keys=dflash(7) | SCHEDULE)
    assert vllm_log.containing("7 tokens per step, by batch size [[1, 4, 7], [5, 8, 0]], with")


@pytest.fixture(params=[True, False], ids=["a CPU that packs convolutions", "one that does not"])
def packs(request, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: request.param)
    monkeypatch.setattr(gdn_attention, "is_arm_bf16", lambda: False)
    return request.param


@pytest.mark.parametrize("k", [2, 7])
def test_adapters_are_refused_where_packed_weights_would_be_misread(configure, packs, k):
    """A start that chose replay by itself does not fall back there."""
    per_token = {"k": k, "enable_lora": True, "options": {"hybrid_state": "per_token"}}
    if packs:
        with pytest.raises(HybridStateError, match=r"enable_lora is True.*packs weights of conv"):
            configure(**per_token)
        assert configure(k, enable_lora=True).model_config.hf_config.eagle_ext["must_replay"]
        return
    assert configure(**per_token).model_config.architecture == "Qwen3_5ForCausalLM"
    auto = configure(k, enable_lora=True).model_config
    assert "EagleExt" in auto.architecture
    assert auto.hf_config.eagle_ext["must_replay"] is False


@pytest.mark.parametrize("arm", [True, False])
@pytest.mark.parametrize("avx512", [True, False])
def test_what_packs_convolutions_is_what_vllm_asks(monkeypatch, arm, avx512):
    """By vLLM's own loading of such weights, with its packing itself replaced."""
    config = changed(tiny_config("hybrid_target", "dflash", "dflash"), lora_config=True)
    architecture = CpuArchEnum.ARM if arm else CpuArchEnum.X86
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"bf16": arm})
    monkeypatch.setattr(current_platform, "get_cpu_architecture", lambda: architecture)
    monkeypatch.setattr(utils.ops, "causal_conv1d_weight_pack", torch.clone)
    convolution = torch.nn.Conv1d(8, 8, 4, groups=8, dtype=torch.bfloat16)
    utils.dispatch_cpu_unquantized_gemm(convolution, remove_weight=False)
    packed = hasattr(convolution, "_cpu_unpacked_conv_weight")
    assert per_token_misreads(config) is packed is (arm or avx512)


def test_adaptive_verification_is_refused_by_vllm_on_a_cpu(configure):
    with pytest.raises(ValueError, match="full CUDA graphs|V2 model runner|adaptive draft"):
        configure(keys={"enable_adaptive_verification": True})


@pytest.mark.parametrize(
    "start", [{"target": TARGET}, {"target": TINY / "target"}, {"drafts": False}], ids=str
)
def test_the_option_without_use_is_named(configure, vllm_log, start):
    about = "additional_config.eagle_ext.adaptive_verification is True"
    configure(**start)
    assert not vllm_log.containing(about)
    configure(**start, options={"adaptive_verification": True})
    (record,) = vllm_log.containing(about)
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("leave the option out. It is ignored.")


def test_replay_without_a_draft_is_refused(configure):
    with pytest.raises(HybridStateError, match="'per_token' for Qwen3_5ForCausalLM without drafts"):
        configure(drafts=False, options={"hybrid_state": "replay"})


def test_the_option_parts_compile_caches(configure):
    """vLLM's own hash of its speculative config leaves the key out (0.32), and a start with it on must
    not load what a start with it off compiled."""
    off, on = (configure(options={"adaptive_verification": value}) for value in (False, True))
    assert off.compute_hash() != on.compute_hash()
    assert off.compute_hash() == configure(options={"adaptive_verification": False}).compute_hash()
