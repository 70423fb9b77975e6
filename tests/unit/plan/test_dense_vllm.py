"""What keys and values take, against vLLM's own functions, on tiny targets; no engine starts."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from tests.support.planning import kv_cache_planning
from tests.unit.memory.vllm_configs import BUDGET, DRAFTS, IN_FLIGHT, vllm_config
from vllm_eagle_ext.memory.footprint import CacheSetting
from vllm_eagle_ext.memory.geometry import Attention
from vllm_eagle_ext.plan.dense import DenseTarget, kv_cost

TARGETS = {
    "full": (Attention(layers=8, kv_heads=2, head_dim=64),),
    "as many windowed": (
        Attention(layers=4, kv_heads=2, head_dim=64),
        Attention(layers=4, kv_heads=2, head_dim=64, window=128),
    ),
    "few full": (
        Attention(layers=2, kv_heads=2, head_dim=64),
        Attention(layers=10, kv_heads=2, head_dim=64, window=256),
    ),
    "windowed": (Attention(layers=6, kv_heads=2, head_dim=64, window=128),),
}


def spec(attention):
    shared = {
        "block_size": 16, "dtype": torch.bfloat16, "num_kv_heads": attention.kv_heads,
        "head_size": attention.head_dim,
    }  # fmt: skip
    if attention.window:
        return SlidingWindowSpec(**shared, sliding_window=attention.window)
    return FullAttentionSpec(**shared)


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("attention", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("length", [1000, 2048])
def test_vllm_counts_as_we_do(attention, draft, length):
    setting = CacheSetting(k=3, max_model_len=length, in_flight_tokens=IN_FLIGHT)
    config = vllm_config(setting)
    layers = {
        f"{part}.{n}.{i}": spec(kind)
        for part, kinds in (("layers", attention), ("draft", draft))
        for n, kind in enumerate(kinds)
        for i in range(kind.layers)
    }
    groups = kv_cache_planning.get_kv_cache_groups(config, layers)
    cache = kv_cache_planning.get_kv_cache_config_from_groups(config, groups, BUDGET)
    target = DenseTarget(attention=attention, model_bytes=2, max_position_embeddings=None)
    ours = kv_cost(target, setting, draft)
    assert ours.pool(BUDGET) == cache.num_blocks
    assert ours.concurrency(BUDGET) == get_max_concurrency_for_kv_cache_config(config, cache)


def test_a_window_in_the_targets_group(monkeypatch):
    """Without vLLM's manager of mixed caches the draft keeps all tokens, whatever it attends to."""
    setting = CacheSetting(k=3, max_model_len=2048, in_flight_tokens=IN_FLIGHT)
    config = vllm_config(setting)
    shape = {"layers": 1, "kv_heads": 2, "head_dim": 64}
    target = DenseTarget(attention=TARGETS["full"], model_bytes=2, max_position_embeddings=None)
    layers = {f"layers.{i}": spec(TARGETS["full"][0]) for i in range(8)}
    layers["draft.0"] = spec(Attention(**shape, window=128))
    pools = set()
    for is_off, window in ((True, None), (False, 128)):
        monkeypatch.setattr(config.scheduler_config, "disable_hybrid_kv_cache_manager", is_off)
        groups = kv_cache_planning.get_kv_cache_groups(config, dict(layers))
        cache = kv_cache_planning.get_kv_cache_config_from_groups(config, groups, BUDGET)
        ours = kv_cost(target, setting, [Attention(**shape, window=window)])
        assert ours.pool(BUDGET) == cache.num_blocks
        assert ours.concurrency(BUDGET) == get_max_concurrency_for_kv_cache_config(config, cache)
        pools.add(cache.num_blocks)
    assert len(pools) == 2
