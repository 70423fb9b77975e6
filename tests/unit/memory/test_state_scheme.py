"""Replay or one state block per draft token: what is refused, what falls back, and what is said."""

from __future__ import annotations

import pytest
import torch

from tests.support.described import changed, problems, tiny_config
from vllm_eagle_ext.draft.findings import Problem, Severity
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.memory.device import Device
from vllm_eagle_ext.memory.state_scheme import OPTION
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.start.rules import states
from vllm_eagle_ext.start.rules.states import short_rows_are_served, state_can_be_kept

FIELDS = {  # of vLLM's config
    "architecture": "model_config__architecture",
    "dtype": "model_config__dtype",
    "supports_replayssm": "model_config__supports_replayssm",
    "k": "speculative_config__num_speculative_tokens",
    "schedule": "speculative_config__num_speculative_tokens_per_batch_size",
    "adaptive": "speculative_config__enable_adaptive_verification",
    "prefix_caching": "cache_config__enable_prefix_caching",
    "use_replayssm": "cache_config__use_replayssm",
    "stages": "parallel_config__pipeline_parallel_size",
    "context_ranks": "parallel_config__decode_context_parallel_size",
    "use_ubatching": "parallel_config__use_ubatching",
    "connector": "kv_transfer_config__kv_connector",
    "adapters": "lora_config",
}
HYBRID = ("hybrid_target", "dflash", "dflash")
ON_CPU = {"runner": "v1", "platform": "cpu", "prefix_caching": False}
IMPOSSIBLE = {
    "platform": {"platform": "rocm"},
    "model runner": {"runner": "v1", "prefix_caching": False},
    "enable_prefix_caching": {"runner": "v1", "platform": "cpu"},
    "dtype": {"platform": "cpu", "dtype": "float16"},
    "pipeline_parallel_size": {"stages": 2},
    "context parallel size": {"context_ranks": 2},
    "kv_transfer_config": {"connector": "NixlConnector"},
    "use_replayssm": {"use_replayssm": True, "supports_replayssm": True},
    "enable_dbo": {"use_ubatching": True},
}


@pytest.fixture(autouse=True)
def _described(monkeypatch):
    tiny_config(*HYBRID)
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(states, "device_of", lambda config: config.device)


def engine(*, release="0.32.0", platform="cuda", runner="v2", **fields):
    """vLLM's config of a hybrid target: on V2 of a GPU with prefix caching, but for these fields."""
    given = {"k": 15, "prefix_caching": True} | fields
    return changed(
        tiny_config(*HYBRID),
        device=Device(release=release, platform=platform), use_v2_model_runner=runner == "v2",
        **{FIELDS[name]: value for name, value in given.items()},
    )  # fmt: skip


def choose(config, asked="auto"):
    return states.choose_scheme(config, Options(hybrid_state=asked))


def refusals(config, asked="auto", **options) -> list[Problem]:
    """What the rule says: nothing where the states can be kept, else the first reason."""
    assert state_can_be_kept.error is HybridStateError
    return problems(state_can_be_kept, config, hybrid_state=asked, **options)


CHOICES = [  # what is served, what is asked for, and how the choice begins
    ({}, "auto", "replay, 2 state blocks per request (committed state, block boundary of prefix"),
    ({"prefix_caching": False}, "auto", "replay, 1 state block per request (committed state); "),
    ({"k": 1}, "auto", "per_token, 3 state blocks per request (committed state, 1 draft token, block "),
    ({"k": 2}, "auto", "per_token, 4 state blocks"),
    ({"k": 3}, "auto", "replay, 2 state blocks"),
    ({"k": 1}, "replay", "replay, 2 state blocks"),
    ({}, "per_token", "per_token, 17 state blocks"),
    *((ON_CPU | {"k": k, "release": release}, "auto",
       f"replay, 2 state blocks per request (committed state, CPU scratch); {k} draft token")
      for k in (1, 2, 3, 15) for release in ("0.32.0", "0.33.0")),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "asked", "said"), CHOICES, ids=str)
def test_what_is_chosen(changes, asked, said):
    choice = choose(engine(**changes), asked)
    assert str(choice).startswith(said)
    is_small = asked == "auto" and not choice.replays
    assert ("on a GPU replay pays from 3" in choice.reason) is is_small


SHORT_ROWS = [
    ({}, "per_token", ["leave the option out"]),
    ({"dtype": "float16"}, "auto", ["--dtype bfloat16"]),
    ({"dtype": "float16"}, "per_token", ["leave the option out", "--dtype bfloat16"]),
    ({"prefix_caching": True}, "auto", ["--no-enable-prefix-caching"]),
]


@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize(("changes", "asked", "remedies"), SHORT_ROWS, ids=str)
def test_rows_that_a_cpu_misplaces_are_warned_of(changes, asked, remedies, k):
    config = engine(**ON_CPU | changes | {"k": k})
    assert short_rows_are_served.severity is Severity.WARNING
    (problem,) = problems(short_rows_are_served, config, hybrid_state=asked)
    assert (problem.field, problem.value) == (OPTION, asked)
    assert choose(config, asked).reason in problem.allowed
    assert all(remedy in problem.remedy for remedy in remedies)


@pytest.mark.parametrize(
    "changes",
    [
        {},  # replay
        {"release": "0.33.0", "dtype": "float16"},
        {"platform": "cuda", "runner": "v2", "k": 1},
        {"architecture": "Qwen3ForCausalLM", "dtype": "float16"},
    ],
    ids=str,
)
def test_rows_that_are_placed_right_need_no_warning(changes):
    assert not problems(short_rows_are_served, engine(**ON_CPU | changes))


@pytest.mark.promise("no replay on V1 of a CPU with prefix caching", id="enable_prefix_caching")
@pytest.mark.promise("no replay on V1 of a GPU: one state block per draft token", id="model runner")
@pytest.mark.parametrize("field", IMPOSSIBLE)
def test_what_is_impossible(field):
    config = engine(**IMPOSSIBLE[field])
    assert [problem.field for problem in states.unsupported_by_replay(config)] == [field]
    choice = choose(config)
    assert not choice.replays
    assert field in choice.reason
    (refusal,) = refusals(config, "replay")
    assert refusal.field == field
    assert "per_token" in refusal.remedy
    (refusal,) = refusals(engine(stages=2, use_ubatching=True), "replay")
    assert "also: enable_dbo" in refusal.remedy  # all are named


def test_prefix_caching_on_v1_without_triton_is_refused(monkeypatch):
    """vLLM itself would crash later, with one state block per draft token too."""
    assert not refusals(engine(runner="v1", platform="cpu"))
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    (refusal,) = refusals(engine(runner="v1", platform="cpu"))
    assert "--no-enable-prefix-caching" in refusal.remedy
    for other in (engine(**ON_CPU), engine()):
        assert not refusals(other)


SCHEDULE = {"schedule": [[1, 4, 15], [5, 8, 0]]}


@pytest.mark.promise("a schedule of K is refused where vLLM crashes in short steps")
@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"prefix_caching": True}], ids=str)
def test_a_schedule_on_a_cpu_needs_replay(changes):
    """vLLM 0.32 itself would crash in a step of fewer drafts, or say something else."""
    config = engine(**ON_CPU | SCHEDULE | changes)
    (refusal,) = refusals(config)
    assert "num_speculative_tokens_per_batch_size" in refusal.field
    assert refusal.value == SCHEDULE["schedule"]
    assert choose(config).reason in refusal.allowed
    assert "leave the key out" in refusal.remedy
    assert "hybrid_state" in refusal.remedy


@pytest.mark.parametrize(
    ("changes", "asked", "needs_replay"),
    [
        ({}, "replay", True),
        ({}, "auto", True),
        ({"k": 2}, "auto", True),
        ({"schedule": None}, "per_token", False),
        ({"release": "0.33.0"}, "per_token", False),
        ({"platform": "cuda", "runner": "v2"}, "per_token", False),
    ],
    ids=str,
)
def test_a_schedule_that_can_be_served(changes, asked, needs_replay):
    """Where only replay can, a start whose self-check fails must not fall back."""
    config = engine(**ON_CPU | SCHEDULE | changes)
    assert not refusals(config, asked)
    assert states.needs_replay(config) is needs_replay


@pytest.mark.promise("LoRA on a hybrid target: replay, and on a CPU nothing else")
@pytest.mark.parametrize(("k", "asked", "served"), [
    (7, "auto", True), (2, "replay", True), (2, "auto", True), (2, "per_token", False),
    (7, "per_token", False),
])  # fmt: skip
def test_adapters_need_replay_on_a_cpu(k, asked, served):
    """vLLM's own kernels take packed weights of a convolution that LoRA wraps for plain ones."""
    config = engine(**ON_CPU, k=k, adapters=True)
    assert states.needs_replay(config)
    refused = refusals(config, asked)
    assert [problem.field for problem in refused] == ([] if served else ["enable_lora"])
    assert all("keep the states by replay" in problem.remedy for problem in refused)


@pytest.mark.parametrize("k", [2, 7])
@pytest.mark.parametrize(
    ("changes", "packs"),
    [({}, True), (ON_CPU, False), (ON_CPU | {"dtype": "float32"}, True)],
    ids=["on a GPU", "on a CPU that packs none", "of weights that no CPU packs"],
)
def test_adapters_elsewhere_leave_the_choice_as_it_is(k, changes, packs, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: packs)
    monkeypatch.setattr(
        "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention.is_arm_bf16", lambda: False
    )
    plain, config = engine(**changes, k=k), engine(**changes, k=k, adapters=True)
    for asked in ("auto", "per_token"):
        assert not states.needs_replay(config)
        assert choose(config, asked) == choose(plain, asked)
        assert not refusals(config, asked)


@pytest.mark.promise("adaptive verification needs replay and its option")
@pytest.mark.parametrize(
    ("changes", "asked", "allowed"),
    [
        ({}, "replay", False),
        ({}, "auto", False),
        ({}, "per_token", True),
        ({"use_ubatching": True}, "auto", True),
    ],
    ids=str,
)
def test_drafts_trimmed_on_the_device_need_replay_and_the_option(changes, asked, allowed):
    (refusal,) = refusals(engine(adaptive=True, **changes), asked, adaptive_verification=allowed)
    assert "enable_adaptive_verification" in refusal.field
    assert "untested on GPUs" in refusal.allowed
    for option in ("hybrid_state", "adaptive_verification"):
        assert option in refusal.remedy
    for served in ("auto", "replay"):
        assert not refusals(engine(adaptive=True), served, adaptive_verification=True)
    assert states.needs_replay(engine(adaptive=True))
