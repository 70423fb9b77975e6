"""Builds a registered drafter on a checkpoint, layer by layer vLLM's own, without an engine.

Only paged attention is replaced, by a plain one with a list for a cache: engines cover the real one.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vllm_eagle_ext import plugin
from vllm_eagle_ext.start.build import judge_engine


class PlainAttention(torch.nn.Module):
    """Causal attention over every row seen so far; `keep` drops the rows after the first n."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.shape = (heads, kv_heads, head_dim)
        self.causal, self.window = True, None
        self.keep(0)
        # What DFlash writes its context through.
        self.impl = SimpleNamespace(do_kv_cache_update=self._update)
        self.kv_cache, self.layer_name = None, ""

    def keep(self, n: int) -> None:
        _, kv_heads, d = self.shape
        empty = torch.empty(0, kv_heads, d)
        self.keys = getattr(self, "keys", empty)[:n]
        self.values = getattr(self, "values", empty)[:n]

    def _update(self, _attention: Any, k: torch.Tensor, v: torch.Tensor, *_: Any) -> None:
        """k, v [T, kv heads, d]"""
        self.keys = torch.cat([self.keys, k.float()])
        self.values = torch.cat([self.values, v.float()])

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, kv_heads, d = self.shape
        first = len(self.keys)
        self._update(None, k.view(-1, kv_heads, d), v.view(-1, kv_heads, d))
        keys = self.keys.repeat_interleave(heads // kv_heads, dim=1)
        values = self.values.repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("thd,shd->hts", q.view(-1, heads, d).float(), keys) / d**0.5
        distance = (torch.arange(len(q)) + first)[:, None] - torch.arange(len(keys))
        visible = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.window is not None:
            visible &= distance.abs() < self.window
        scores = scores.masked_fill(~visible, float("-inf"))
        mixed = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
        return mixed.reshape(len(q), heads * d).to(q.dtype)


class PlainLatentAttention(torch.nn.Module):
    """The same for multi-head latent attention: keeps latents and the shared rotated key."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.kv_b_proj = layer.kv_b_proj
        self.heads, self.nope, self.value = layer.num_heads, layer.qk_nope_head_dim, layer.v_head_dim
        self.latents: list[torch.Tensor] = []
        self.rotated: list[torch.Tensor] = []

    def forward(
        self, q: torch.Tensor, latent: torch.Tensor, rotated: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        """q [T, heads, nope + rope], latent [T, c], rotated [T, 1, rope] -> [T, heads * value]"""
        first = sum(len(rows) for rows in self.latents)
        self.latents.append(latent)
        self.rotated.append(rotated)
        shared = torch.cat(self.rotated).expand(-1, self.heads, -1)
        kv = self.kv_b_proj(torch.cat(self.latents))[0].view(-1, self.heads, self.nope + self.value)
        keys = torch.cat([kv[..., : self.nope], shared], dim=-1)
        scores = torch.einsum("thd,shd->hts", q, keys) / q.shape[-1] ** 0.5
        distance = (torch.arange(len(q)) + first)[:, None] - torch.arange(len(keys))
        scores = scores.masked_fill(distance < 0, float("-inf"))
        return torch.einsum("hts,shd->thd", scores.softmax(-1), kv[..., self.nope :]).flatten(1)


def resolve(
    draft: Path, target: Path, dtype: torch.dtype, speculative: dict[str, Any], **options: Any
) -> Any:
    """vLLM's config of an engine with this draft, resolved by the preflight."""
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    return EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=64,
        dtype=dtype,
        speculative_config={"model": str(draft), **speculative},
        additional_config={"eagle_ext": options},
    ).create_engine_config()


def resolve_for_v2(
    draft: Path, target: Path, dtype: torch.dtype, speculative: dict[str, Any], **options: Any
) -> Any:
    """The same for drafts of the V2 runner, which a CPU lacks: the engine's config is that without a
    draft, and the speculative config what a start on V2 makes."""
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    settings: dict[str, Any] = {
        "model": str(target), "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 64,
        "dtype": dtype,
    }  # fmt: skip
    config = EngineArgs(**settings).create_engine_config()
    asked = EngineArgs(
        **settings,
        speculative_config={"model": str(draft), **speculative},
        additional_config={"eagle_ext": options},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        config.speculative_config = asked.create_speculative_config(
            config.model_config, config.parallel_config
        )
        judge_engine(asked, config)
    return config


def construct(vllm_config: Any, dtype: torch.dtype) -> Any:
    """The registered class, without weights."""
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    draft_config = vllm_config.speculative_config.draft_model_config
    drafter_class = draft_config.registry.resolve_model_cls(draft_config.architectures, draft_config)[0]
    with set_current_vllm_config(vllm_config), set_default_torch_dtype(dtype):
        drafter = drafter_class(vllm_config=vllm_config)
    for layer in drafter.model.layers:
        _replace_attention(layer.self_attn)
    return drafter


def build(
    vllm_config: Any,
    draft: Path,
    dtype: torch.dtype,
    embed_tokens: torch.Tensor,
    lm_head: torch.Tensor | None = None,
) -> Any:
    """embed_tokens, lm_head [V, H]: shared with the target, unless the draft has its own."""
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    drafter = construct(vllm_config, dtype)
    drafter.load_weights(iter(load_file(draft / "model.safetensors").items()))
    if not getattr(drafter, "has_own_embed_tokens", False):
        drafter.model.embed_tokens.weight.data = embed_tokens.to(dtype)
    if lm_head is not None and not getattr(drafter, "has_own_lm_head", False):
        drafter.lm_head.weight.data = lm_head.to(dtype)
    draft_config = vllm_config.speculative_config.draft_model_config
    process_weights_after_loading(drafter, draft_config, torch.device("cpu"))
    return drafter


def _replace_attention(attention: Any) -> None:
    if hasattr(attention, "mla_attn"):
        wrapper = attention.mla_attn
        wrapper.mla_attn = PlainLatentAttention(wrapper)
        # The CPU kernel misreads queries of three dimensions (vLLM 0.32).
        wrapper.rotary_emb._forward_method = wrapper.rotary_emb.forward_native
        return
    attention.attn = PlainAttention(attention.num_heads, attention.num_kv_heads, attention.head_dim)
    attention.attn.causal = getattr(attention, "causal", True)
    attention.attn.window = getattr(attention, "sliding_window", None)
