"""Replay or slots: what is refused, what falls back, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.memory.state_scheme import TARGETS, Situation, choose, obstacles, refuse_what_crashes

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
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "context parallel size": {"context_parallel_size": 2},
    "kv_transfer_config": {"kv_connector": "NixlConnector"},
    "enable_lora": {"lora": True},
    "enable_dbo": {"microbatches": True},
}


def test_names_tell_whose_they_are():
    assert all("EagleExt" in ours for ours in TARGETS.values())


@pytest.mark.parametrize(("k", "replays"), [(1, False), (2, False), (3, True), (15, True)])
def test_auto_takes_replay_where_it_saves(k, replays):
    chosen, reason = choose(replace(PLAIN, k=k), "auto")
    assert chosen is replays
    assert str(k) in reason


def test_what_is_asked_for_is_done():
    assert choose(replace(PLAIN, k=1), "replay")[0]
    assert not choose(PLAIN, "per_token")[0]


@pytest.mark.parametrize("field", IMPOSSIBLE)
def test_what_is_impossible(field, request):
    situation = replace(PLAIN, **IMPOSSIBLE[field])
    assert [obstacle.field for obstacle in obstacles(situation)] == [field]
    chosen, reason = choose(situation, "auto")
    assert not chosen
    assert field in reason
    with pytest.raises(HybridStateError, match=field) as refusal:
        choose(situation, "replay")
    assert "per_token" in refusal.value.remedy


def test_all_obstacles_are_named():
    with pytest.raises(HybridStateError, match="also: enable_lora"):
        choose(replace(PLAIN, pipeline_parallel_size=2, lora=True), "replay")


def test_prefix_caching_on_v1_without_triton_is_refused():
    """vLLM itself would crash later, with slots, too."""
    crashes = replace(PLAIN, runner="v1", platform="cpu", has_triton=False)
    with pytest.raises(HybridStateError, match="no-enable-prefix-caching"):
        refuse_what_crashes(crashes)
    refuse_what_crashes(replace(crashes, prefix_caching=False))
    refuse_what_crashes(replace(crashes, has_triton=True))
    refuse_what_crashes(PLAIN)
