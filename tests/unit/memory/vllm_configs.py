"""What vLLM's planning of caches reads of an engine's config, and layers of drafts."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from vllm.v1.kv_cache_layout import KVCacheLayout

from vllm_eagle_ext.memory.geometry import Attention

BUDGET, IN_FLIGHT = 2**30, 4096
DRAFTS = {
    "no draft": [],
    "as the target": [Attention(layers=1, kv_heads=2, head_dim=64)],
    "about as many as the recurrent layers": [Attention(layers=3, kv_heads=2, head_dim=64)],
    "full": [Attention(layers=5, kv_heads=4, head_dim=32)],
    "windowed": [
        Attention(layers=4, kv_heads=4, head_dim=32, window=128),
        Attention(layers=1, kv_heads=4, head_dim=32),
    ],
    "narrow": [Attention(layers=2, kv_heads=1, head_dim=64)],
    "wide": [Attention(layers=3, kv_heads=6, head_dim=64)],
}


def vllm_config(setting):
    align = "align" if setting.prefix_caching else "none"
    layout = KVCacheLayout.LBNHC
    return SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        compilation_config=SimpleNamespace(static_forward_context={}),
        cache_config=SimpleNamespace(
            cache_dtype="auto", block_size=setting.block_alignment, mamba_cache_mode=align,
            mamba_block_size=None, mamba_page_size_padded=None, num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None, get_resolved_kv_cache_layout=lambda: layout,
        ),
        model_config=SimpleNamespace(
            dtype=torch.bfloat16, use_mla=False, architecture="Qwen3_5ForCausalLM",
            max_model_len=setting.max_model_len, get_num_kv_heads=lambda _: 2, get_head_size=lambda: 64,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        speculative_config=None,
        max_in_flight_tokens=IN_FLIGHT,
    )  # fmt: skip
