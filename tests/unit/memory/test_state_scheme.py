"""Replay or one state block per draft token: what is refused, what falls back, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_eagle_ext.checkpoint.findings import Problem, Severity
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.engine_rules.states import short_rows_are_served, state_can_be_kept
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.memory.state_scheme import OPTION, choose, unsupported_by_replay
from vllm_eagle_ext.options import Options

PLAIN = EngineFacts(
    release="0.32.0",
    architecture="Qwen3_5ForConditionalGeneration",
    k=15,
    runner="v2",
    platform="cuda",
    prefix_caching=True,
)
ON_CPU = {"runner": "v1", "platform": "cpu", "prefix_caching": False}
IMPOSSIBLE = {
    "platform": {"platform": "rocm"},
    "model runner": {"runner": "v1", "prefix_caching": False},
    "enable_prefix_caching": {"runner": "v1", "platform": "cpu"},
    "dtype": {"platform": "cpu", "dtype": "float16"},
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "context parallel size": {"context_parallel_size": 2},
    "kv_transfer_config": {"kv_connector": "NixlConnector"},
    "enable_dbo": {"microbatches": True},
}


def asking(engine, how, **options):
    return replace(engine, options=Options(hybrid_state=how, **options))


def refusals(engine, how="auto", **options) -> list[Problem]:
    """What the rule says: nothing where the states can be kept, else the first reason."""
    assert state_can_be_kept.error is HybridStateError
    return list(state_can_be_kept.check(asking(engine, how, **options)))


def test_names_tell_whose_they_are():
    assert all("EagleExt" in ours for ours in REPLAYING_TARGETS.values())


@pytest.mark.parametrize(("k", "replays"), [(1, False), (2, False), (3, True), (15, True)])
def test_auto_takes_replay_where_it_saves(k, replays):
    choice = choose(asking(replace(PLAIN, k=k), "auto"))
    assert choice.replays is replays
    assert str(k) in choice.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "replay, 2 state blocks per request (committed state, block boundary of prefix caching); "),
        ({"prefix_caching": False}, "replay, 1 state block per request (committed state); "),
        ({"k": 1}, "per_token, 3 state blocks per request (committed state, 1 draft token, block "),
        (
            {"runner": "v1", "platform": "cpu", "prefix_caching": False},
            "replay, 2 state blocks per request (committed state, CPU scratch); 15 draft tokens, ",
        ),
    ],
    ids=str,
)
def test_what_is_kept_is_counted_as_vllm_counts(changes, said):
    assert str(choose(asking(replace(PLAIN, **changes), "auto"))).startswith(said)


@pytest.mark.parametrize("capability", [None, (8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("k", [1, 2, 3, 15])
def test_a_gpu_is_judged_by_k(capability, k):
    """Whatever GPU, kernels and states there are: no modelled time decides."""
    for changes in ({}, {"text": {"linear_key_head_dim": 20}}):
        choice = choose(replace(PLAIN, capability=capability, k=k, **changes))
        assert choice == choose(replace(PLAIN, k=k))
        assert choice.replays is (k >= 3)
        assert ("on a GPU replay pays from 3" in choice.reason) is not choice.replays


@pytest.mark.parametrize("release", ["0.32.0", "0.33.0"])
@pytest.mark.parametrize("k", [1, 2, 3, 15])
def test_a_cpu_replays_wherever_it_can(k, release):
    drafts = "1 draft token" if k == 1 else f"{k} draft tokens"
    choice = choose(replace(PLAIN, **ON_CPU | {"k": k, "release": release}))
    assert (choice.scheme, choice.reason) == ("replay", f"{drafts}, on a CPU")


SHORT_ROWS = [
    ({}, "per_token", ["leave the option out"]),
    ({"dtype": "float16"}, "auto", ["--dtype bfloat16"]),
    ({"dtype": "float16"}, "per_token", ["leave the option out", "--dtype bfloat16"]),
    ({"prefix_caching": True}, "auto", ["--no-enable-prefix-caching"]),
]


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize(("changes", "asked", "remedies"), SHORT_ROWS, ids=str)
def test_rows_that_a_cpu_misplaces_are_warned_of(changes, asked, remedies, k):
    engine = asking(replace(PLAIN, **ON_CPU | changes | {"k": k}), asked)
    assert short_rows_are_served.severity is Severity.WARNING
    (found,) = short_rows_are_served.check(engine)
    assert (found.field, found.value) == (OPTION, asked)
    assert choose(engine).reason in found.allowed
    assert all(remedy in found.remedy for remedy in remedies)


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
    assert not list(short_rows_are_served.check(replace(PLAIN, **ON_CPU | changes)))


def test_what_is_asked_for_is_done():
    assert choose(asking(replace(PLAIN, k=1), "replay")).scheme == "replay"
    assert choose(asking(PLAIN, "per_token")).scheme == "per_token"


@pytest.mark.promise("no replay on V1 of a CPU with prefix caching", id="enable_prefix_caching")
@pytest.mark.promise("no replay on V1 of a GPU: one state block per draft token", id="model runner")
@pytest.mark.parametrize("field", IMPOSSIBLE)
def test_what_is_impossible(field, request):
    engine = replace(PLAIN, **IMPOSSIBLE[field])
    assert [problem.field for problem in unsupported_by_replay(engine)] == [field]
    choice = choose(engine)
    assert not choice.replays
    assert field in choice.reason
    (found,) = refusals(engine, "replay")
    assert found.field == field
    assert "per_token" in found.remedy


def test_all_that_replay_cannot_serve_is_named():
    (found,) = refusals(replace(PLAIN, pipeline_parallel_size=2, microbatches=True), "replay")
    assert "also: enable_dbo" in found.remedy


def test_prefix_caching_on_v1_without_triton_is_refused():
    """vLLM itself would crash later, with one state block per draft token too."""
    crashes = replace(PLAIN, runner="v1", platform="cpu", has_triton=False)
    (found,) = refusals(crashes)
    assert "--no-enable-prefix-caching" in found.remedy
    for other in (replace(crashes, prefix_caching=False), replace(crashes, has_triton=True), PLAIN):
        assert not refusals(other)


SCHEDULE = {"schedule": [[1, 4, 15], [5, 8, 0]]}
KEY = "num_speculative_tokens_per_batch_size"


@pytest.mark.promise("a schedule of K is refused where vLLM crashes in short steps")
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32"},
        {"runner": "v1", "prefix_caching": True, "has_triton": True},
    ],
    ids=str,
)
def test_a_schedule_on_a_cpu_needs_replay(changes):
    """vLLM 0.32 itself would crash in a step of fewer drafts, or say something else."""
    engine = replace(PLAIN, **ON_CPU | SCHEDULE | changes)
    (found,) = refusals(engine)
    assert KEY in found.field
    assert found.value == SCHEDULE["schedule"]
    assert choose(engine).reason in found.allowed
    assert "leave the key out" in found.remedy
    assert "hybrid_state" in found.remedy


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
    engine = replace(PLAIN, **ON_CPU | SCHEDULE | changes)
    assert not refusals(engine, asked)
    assert engine.needs_replay is needs_replay


@pytest.mark.promise("LoRA on a hybrid target: replay, and on a CPU nothing else")
@pytest.mark.parametrize(("k", "asked", "served"), [
    (7, "auto", True), (2, "replay", True), (2, "auto", True), (2, "per_token", False),
    (7, "per_token", False),
])  # fmt: skip
def test_adapters_need_replay_on_a_cpu(k, asked, served):
    """vLLM's own kernels take packed weights of a convolution that LoRA wraps for plain ones."""
    engine = replace(PLAIN, **ON_CPU | {"k": k, "lora": True})
    assert engine.needs_replay
    found = refusals(engine, asked)
    assert [one.field for one in found] == ([] if served else ["enable_lora"])
    assert all("keep the states by replay" in one.remedy for one in found)


@pytest.mark.parametrize("k", [2, 7])
@pytest.mark.parametrize(
    "changes",
    [{}, ON_CPU | {"packs_convolutions": False}, ON_CPU | {"dtype": "float32"}],
    ids=["on a GPU", "on a CPU that packs none", "of weights that no CPU packs"],
)
def test_adapters_elsewhere_leave_the_choice_as_it_is(k, changes):
    plain = replace(PLAIN, k=k, **changes)
    for asked in ("auto", "per_token"):
        engine = replace(plain, lora=True)
        assert not engine.needs_replay
        assert choose(asking(engine, asked)) == choose(asking(plain, asked))
        assert not refusals(engine, asked)


ADAPTIVE = {"adaptive_verification": True}


@pytest.mark.promise("adaptive verification needs replay and its option")
@pytest.mark.parametrize(
    ("changes", "asked", "allowed"),
    [
        ({}, "replay", False),
        ({}, "auto", False),
        ({}, "per_token", True),
        ({"microbatches": True}, "auto", True),
    ],
    ids=str,
)
def test_drafts_trimmed_on_the_device_need_replay_and_the_option(changes, asked, allowed):
    (found,) = refusals(replace(PLAIN, **ADAPTIVE | changes), asked, adaptive_verification=allowed)
    assert "enable_adaptive_verification" in found.field
    assert "untested on GPUs" in found.allowed
    for option in ("hybrid_state", "adaptive_verification"):
        assert option in found.remedy


@pytest.mark.parametrize("asked", ["auto", "replay"])
def test_drafts_trimmed_on_the_device_with_replay_and_the_option(asked):
    engine = replace(PLAIN, **ADAPTIVE)
    assert not refusals(engine, asked, adaptive_verification=True)
    assert engine.needs_replay
