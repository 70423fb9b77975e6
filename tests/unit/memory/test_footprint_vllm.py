"""The formulas against vLLM's own functions, on specs of a tiny Qwen3.5 target; no engine starts."""

from __future__ import annotations

import pytest
import torch
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from tests.support.planning import kv_cache_planning
from tests.unit.memory.vllm_configs import BUDGET, DRAFTS, IN_FLIGHT, vllm_config
from vllm_eagle_ext.memory.footprint import CacheSetting, footprint
from vllm_eagle_ext.memory.geometry import read_target

pytestmark = pytest.mark.promise("`plan` counts memory as vLLM does")

CONFIG = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 8, "full_attention_interval": 4,
    "hidden_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "dtype": "bfloat16",
}  # fmt: skip


class Backend:
    """What FlashAttention says on a Hopper GPU, or vLLM's own backend on a CPU."""

    def __init__(self, block):
        self.block = block

    def get_supported_kernel_block_sizes(self):
        return [MultipleOf(self.block)]

    def customize_spec(self, spec):
        return spec


class Model:
    """State shapes as Qwen3_5ForCausalLM gives them; with replay, the recorded inputs behind."""

    def __init__(self, scheme, k):
        self.scheme, self.k = scheme, k

    def get_mamba_state_shape_from_config(self, _):
        shapes = MambaStateShapeCalculator.gated_delta_net_state_shape(1, 2, 4, 64, 64, 4, self.k)
        recorded = ((self.k + 1, 2 * 64 + 4 * 64 + 2 * 4),)
        return (*shapes, *(recorded if self.scheme == "replay" else ()))

    def get_mamba_state_dtype_from_config(self, _):
        return (torch.bfloat16, torch.float32, torch.bfloat16)[: 2 + (self.scheme == "replay")]


def specs(config, model, draft, speculative_blocks):
    """What the layers of target and draft hand to vLLM, by layer."""
    cache = config.cache_config
    state = MambaSpec(
        shapes=model.get_mamba_state_shape_from_config(None),
        dtypes=model.get_mamba_state_dtype_from_config(None),
        block_size=cache.mamba_block_size or config.model_config.max_model_len,
        page_size_padded=cache.mamba_page_size_padded,
        mamba_cache_mode=cache.mamba_cache_mode,
        num_speculative_blocks=speculative_blocks,
    )
    shared = {"block_size": cache.block_size, "dtype": torch.bfloat16}
    full = FullAttentionSpec(**shared, num_kv_heads=2, head_size=64)
    found = {f"layers.{n}": full if n % 4 == 3 else state for n in range(8)}
    for kind in draft:
        heads = {"num_kv_heads": kind.kv_heads, "head_size": kind.head_dim}
        spec = (
            SlidingWindowSpec(**shared, **heads, sliding_window=kind.window)
            if kind.window
            else FullAttentionSpec(**shared, **heads)
        )
        found |= {f"draft.{len(found) + n}": spec for n in range(kind.layers)}
    return found


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("scheme", ["per_token", "replay"])
@pytest.mark.parametrize("k", [1, 7, 16])
@pytest.mark.parametrize(("prefix_caching", "cpu"), [(True, False), (False, False), (False, True)])
def test_vllm_counts_as_we_do(monkeypatch, draft, scheme, k, prefix_caching, cpu):
    setting = CacheSetting(
        k=k, max_model_len=2048, prefix_caching=prefix_caching, cpu=cpu, in_flight_tokens=IN_FLIGHT
    )
    config, model = vllm_config(setting), Model(scheme, k)
    backend = Backend(32 if cpu else 16)
    monkeypatch.setattr(ModelRegistry, "resolve_model_cls", lambda *_, **__: (model, ""))
    monkeypatch.setattr(Platform, "_find_non_ssm_backends", lambda _: [backend])
    Platform._align_hybrid_block_size(config, backend)
    speculative_blocks = k if scheme == "per_token" else int(cpu)
    groups = kv_cache_planning.get_kv_cache_groups(
        config, specs(config, model, draft, speculative_blocks)
    )
    cache = kv_cache_planning.get_kv_cache_config_from_groups(config, groups, BUDGET)

    ours = footprint(read_target(CONFIG), scheme, setting, draft)
    assert ours.layer_block.tokens == config.cache_config.block_size
    assert ours.layer_block.padded == groups[0].kv_cache_spec.page_size_bytes
    assert ours.pool(BUDGET) == cache.num_blocks
    theirs = get_max_concurrency_for_kv_cache_config(config, cache)
    assert ours.concurrency(BUDGET) == theirs
