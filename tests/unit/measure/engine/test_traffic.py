"""Bytes of made-up models and caches, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_eagle_ext.measure.engine import traffic
from vllm_eagle_ext.measure.engine.traffic import (
    WeightBytes,
    copy_bytes_per_s,
    draft_layers,
    kv_bytes,
    weights,
)

V, H, F = 100, 8, 16  # vocabulary, width, width of the MLP
BF16 = 2


def layer(kind: type[nn.Module], *shape: int, **attributes: object) -> nn.Module:
    """One of vLLM's layers without its constructor, which asks for a process group."""
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    made.weight = nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


class Model(nn.Module):
    """An embedding table, a projection, and a head; `tied` heads share the table's storage."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = layer(VocabParallelEmbedding, V, H)
        self.model.proj = nn.Linear(H, F, bias=False, dtype=torch.bfloat16)
        self.lm_head = layer(ParallelLMHead, V, H)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


def test_a_table_is_not_read_and_a_head_is():
    assert weights(Model()) == WeightBytes(dense=(H * F + V * H) * BF16)


def test_a_tied_head_counts_once():
    assert weights(Model(tied=True)) == WeightBytes(dense=(H * F + V * H) * BF16)


def test_a_module_used_twice_counts_once():
    model = Model()
    model.model.again = model.model.proj
    assert weights(model).dense == (H * F + V * H) * BF16


def test_no_draft_has_no_weights():
    assert weights(None) == WeightBytes()


def test_a_draft_that_shares_table_and_head_reads_the_head():
    target, draft = Model(), Model()
    draft.model.embed_tokens, draft.lm_head = target.model.embed_tokens, target.lm_head
    assert weights(draft).dense == (H * F + V * H) * BF16


def test_experts_are_counted_apart():
    model = Model()
    model.model.experts = layer(RoutedExperts, 4, 2 * F, H, global_num_experts=4, top_k=2)
    model.model.experts.scale = nn.Parameter(torch.zeros(4), requires_grad=False)
    found = weights(model)
    assert found.experts == 4 * 2 * F * H * BF16 + 4 * 4
    assert (found.experts_per_layer, found.experts_per_token) == (4, 2)
    assert found.dense == weights(Model()).dense


def test_a_weight_that_was_packed_away_counts_by_its_shape():
    model = Model()
    model.model.packed = layer(
        ColumnParallelLinear, 0, input_size=H, output_size=2 * F,
        input_size_per_partition=H, output_size_per_partition=F,
    )  # fmt: skip
    assert weights(model).dense == weights(Model()).dense + H * F * BF16


def test_towers_are_left_out():
    class WithTower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual = nn.Linear(50, 50)
            self.language_model = Model()

        def get_language_model(self) -> nn.Module:
            return self.language_model

    assert weights(WithTower()) == weights(Model())


def test_a_head_beside_the_language_model_is_read():
    class WithHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = Model()
            self.language_model, self.lm_head = whole.model, whole.lm_head

        def get_language_model(self) -> nn.Module:
            return self.language_model

    assert weights(WithHead()) == weights(Model())


def test_layers_of_the_draft_are_told_by_their_modules():
    target, draft = Model(), Model()
    layers = {"model.layers.0.attn": target.model.proj, "model.layers.2.attn": draft.model.proj}
    assert draft_layers(layers, draft) == {"model.layers.2.attn"}
    assert draft_layers(layers, None) == set()


def attention(heads: int = 2, dim: int = 32, **changes: object) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=16, num_kv_heads=heads, head_size=dim, dtype=torch.bfloat16, **changes
    )


def cache(*groups: KVCacheGroupSpec) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=list(groups))


def test_cache_of_target_and_draft_in_one_group():
    found = kv_bytes(cache(KVCacheGroupSpec(["a", "b", "d"], attention())), {"d"})
    assert found.target_per_token == 2 * (2 * 2 * 32 * BF16)  # keys and values of 2 heads
    assert found.draft_per_token == 2 * 2 * 32 * BF16
    assert (found.state, found.state_blocks) == (0, 0)


def test_groups_windows_and_layers_of_several_sizes():
    windowed = SlidingWindowSpec(
        block_size=16, num_kv_heads=1, head_size=32, dtype=torch.bfloat16, sliding_window=64
    )
    mixed = UniformTypeKVCacheSpecs(
        block_size=16, kv_cache_specs={"c": attention(), "d": attention(heads=4)}
    )
    found = kv_bytes(
        cache(KVCacheGroupSpec(["a"], windowed), KVCacheGroupSpec(["c", "d"], mixed)), {"d"}
    )
    assert found.target_per_token == 2 * 32 * BF16 + 2 * 2 * 32 * BF16
    assert found.draft_per_token == 2 * 4 * 32 * BF16


def test_padding_of_a_page_is_not_read():
    assert kv_bytes(cache(KVCacheGroupSpec(["a"], attention(page_size_padded=10**6))), set()) == (
        kv_bytes(cache(KVCacheGroupSpec(["a"], attention())), set())
    )


@pytest.mark.parametrize(("drafted", "written"), [(0, 1), (1, 2), (7, 8)])
def test_blocks_of_a_recurrent_state(drafted, written):
    state = MambaSpec(
        block_size=128, shapes=((3, 10), (4, 8, 8)), dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=10**5, mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
        num_speculative_blocks=drafted,
    )  # fmt: skip
    found = kv_bytes(
        cache(KVCacheGroupSpec(["g1", "g2"], state), KVCacheGroupSpec(["a"], attention())), set()
    )
    assert found.state == 2 * (30 * 2 + 256 * 4)
    assert found.state_blocks == written
    assert found.target_per_token == 2 * 2 * 32 * BF16


def test_bandwidth_is_read_and_written_bytes_of_the_best_copy(monkeypatch):
    seconds = iter([0.5, 0.25, 0.4, 0.3, 0.6])
    monkeypatch.setattr(traffic, "_CPU_BUFFER", 1000)
    monkeypatch.setattr(traffic, "_seconds_to_copy", lambda target, source: next(seconds))
    assert copy_bytes_per_s(torch.device("cpu")) == 2 * 1000 / 0.25


def test_bandwidth_of_this_machine_is_one(monkeypatch):
    monkeypatch.setattr(traffic, "_CPU_BUFFER", 2**24)
    assert 1e8 < copy_bytes_per_s(torch.device("cpu")) < 1e13
