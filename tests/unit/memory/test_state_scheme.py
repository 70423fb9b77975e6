"""Replay or one state block per draft token: what is refused, what falls back, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.memory.state_scheme import (
    REPLAYING_TARGETS,
    Situation,
    choose,
    obstacles,
    refuse_what_crashes,
)

PLAIN = Situation(
    architecture="Qwen3_5ForConditionalGeneration",
    k=15,
    runner="v2",
    platform="cuda",
    prefix_caching=True,
)
IMPOSSIBLE = {
    "platform": {"platform": "rocm"},
    "model runner": {"runner": "v1", "prefix_caching": False},
    "enable_prefix_caching": {"runner": "v1", "platform": "cpu"},
    "dtype": {"platform": "cpu", "dtype": "float16"},
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "context parallel size": {"context_parallel_size": 2},
    "kv_transfer_config": {"kv_connector": "NixlConnector"},
    "enable_lora": {"lora": True},
    "enable_dbo": {"microbatches": True},
}


def test_names_tell_whose_they_are():
    assert all("EagleExt" in ours for ours in REPLAYING_TARGETS.values())


@pytest.mark.parametrize(("k", "replays"), [(1, False), (2, False), (3, True), (15, True)])
def test_auto_takes_replay_where_it_saves(k, replays):
    choice = choose(replace(PLAIN, k=k), "auto")
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
            "replay, 2 state blocks per request (committed state, CPU scratch); 15 draft tokens",
        ),
    ],
    ids=str,
)
def test_what_is_kept_is_counted_as_vllm_counts(changes, said):
    assert str(choose(replace(PLAIN, **changes), "auto")).startswith(said)


def test_what_is_asked_for_is_done():
    assert choose(replace(PLAIN, k=1), "replay").scheme == "replay"
    assert choose(PLAIN, "per_token").scheme == "per_token"


@pytest.mark.parametrize("field", IMPOSSIBLE)
def test_what_is_impossible(field, request):
    situation = replace(PLAIN, **IMPOSSIBLE[field])
    assert [obstacle.field for obstacle in obstacles(situation)] == [field]
    choice = choose(situation, "auto")
    assert not choice.replays
    assert field in choice.reason
    with pytest.raises(HybridStateError, match=field) as refusal:
        choose(situation, "replay")
    assert "per_token" in refusal.value.remedy


def test_all_obstacles_are_named():
    with pytest.raises(HybridStateError, match="also: enable_lora"):
        choose(replace(PLAIN, pipeline_parallel_size=2, lora=True), "replay")


def test_prefix_caching_on_v1_without_triton_is_refused():
    """vLLM itself would crash later, with one state block per draft token too."""
    crashes = replace(PLAIN, runner="v1", platform="cpu", has_triton=False)
    with pytest.raises(HybridStateError, match="no-enable-prefix-caching"):
        refuse_what_crashes(crashes)
    refuse_what_crashes(replace(crashes, prefix_caching=False))
    refuse_what_crashes(replace(crashes, has_triton=True))
    refuse_what_crashes(PLAIN)
