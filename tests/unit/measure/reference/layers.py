"""An EAGLE-3 draft of transformers' own layers, all rows in one pass, to hold the reference against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, INTER, KV_HEADS, LAYERS, VOCAB
from tests.support.drafts import Draft, inspect
from vllm_eagle_ext.draft.draft_config import flatten
from vllm_eagle_ext.draft.tensors import canonical_name
from vllm_eagle_ext.measure.reference.published import load_reference

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def rope(key: str, block: dict[str, Any]) -> Callable[[Draft], None]:
    return lambda draft: draft.config.update({key: {**block, "rope_theta": 10000.0}})


def tiny_target() -> LlamaForCausalLM:
    """Random weights, in the sizes of the tests' drafts."""
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTER, num_hidden_layers=LAYERS, vocab_size=VOCAB,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return LlamaForCausalLM(config).eval()


def llama_config(config: dict[str, Any]) -> LlamaConfig:
    """A draft's config for transformers; keys that transformers has no use for are left out."""
    flat = flatten(config)
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
        "rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias",
    )  # fmt: skip
    kept = {name: flat[name] for name in names if flat.get(name) is not None}
    made = LlamaConfig(**kept)
    made._attn_implementation = "eager"
    return made


@dataclass
class HostLayers:
    """The draft's tensors; embed_tokens and lm_head are its own, or those given."""

    draft: Draft
    embed_tokens: torch.Tensor
    order: Sequence[int]  # of each aux layer, ascending, the block of fc
    windows: Sequence[int | None]

    def __post_init__(self) -> None:
        self.config = llama_config(self.draft.config)
        self.tensors = {
            canonical_name(name): tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in self.draft.tensors.items()
        }
        self.layers = [self._layer(index) for index in range(self.config.num_hidden_layers)]
        self.rotary = LlamaRotaryEmbedding(self.config)
        self.embed_tokens = self.tensors.get("embed_tokens.weight", self.embed_tokens)

    def flag(self, name: str) -> bool:
        return bool(flatten(self.draft.config).get(name))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self.tensors[f"{name}.weight"]
        norm = LlamaRMSNorm(len(weight), eps=self.config.rms_norm_eps)
        norm.weight.data = weight
        return norm(x)

    def fuse(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse states per aux layer, ascending, [T, Ht] -> [T, H], in the file's order of blocks."""
        listed = [states[self.order.index(block)] for block in range(len(states))]
        if self.flag("fc_norm"):
            listed = [self.norm(f"fc_norm.{block}", state) for block, state in enumerate(listed)]
        joined = torch.cat(listed, dim=-1)
        if self.flag("norm_before_fc"):
            joined = self.norm("input_norm", joined)
        return torch.nn.functional.linear(joined, self.tensors["fc.weight"])

    def rows(self, tokens: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens [T], g [T, H] at positions 0..T-1 -> logits [T, Vd], states before the norm [T, H]."""
        at = torch.arange(len(tokens))
        turns = self.rotary(g[None], at[None])
        start = self.norm("layers.0.hidden_norm", g)
        residual = start if self.flag("norm_before_residual") else g
        embedded = self.norm("layers.0.input_layernorm", self.embed_tokens[tokens])
        x, y = torch.cat([embedded, start], dim=-1), residual
        for index, (attention, mlp) in enumerate(self.layers):
            if index:
                x = self.norm(f"layers.{index}.input_layernorm", y)
            distance = at[:, None] - at
            hidden = distance < 0
            if (window := self.windows[index]) is not None:
                hidden |= distance >= window
            mask = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))[None, None]
            y = y + attention(x[None], position_embeddings=turns, attention_mask=mask)[0][0]
            y = y + mlp(self.norm(f"layers.{index}.post_attention_layernorm", y))
        return self.norm("norm", y) @ self.tensors["lm_head.weight"].T, y

    def _layer(self, index: int) -> tuple[LlamaAttention, LlamaMLP]:
        attention, mlp = LlamaAttention(self.config, 0).eval(), LlamaMLP(self.config).eval()
        for prefix, module in (("self_attn", attention), ("mlp", mlp)):
            for name, child in module.named_children():
                if isinstance(child, torch.nn.Linear):
                    self._fill(f"layers.{index}.{prefix}.{name}", child)
        return attention, mlp

    def _fill(self, name: str, linear: torch.nn.Linear) -> None:
        linear.weight = torch.nn.Parameter(self.tensors[f"{name}.weight"])
        if linear.bias is not None:
            linear.bias = torch.nn.Parameter(self.tensors[f"{name}.bias"])


ROWS = 24


@dataclass
class Both:
    """A draft as the reference and as transformers' layers have it, and what the target hands to it."""

    reference: Any
    host: HostLayers
    tokens: torch.Tensor  # [ROWS + 1]
    states: list[torch.Tensor]  # per aux layer [ROWS + 1, Ht]


@torch.inference_mode()
def both(draft: Draft, folder, target, **options) -> Both:
    inspection = inspect(draft, folder, engine={"max_model_len": 64}, **options)
    assert not inspection.errors, inspection.errors
    spec = inspection.spec
    reference = load_reference(spec, folder, target)
    host = HostLayers(
        draft, target.get_input_embeddings().weight.data, spec.aux_layers.order,
        [layer.window for layer in spec.layers],
    )  # fmt: skip
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, VOCAB - 1, (ROWS + 1,), generator=generator)
    # Of unlike size, so that states in another order show.
    states = [
        (1 + 2 * at) * torch.randn(ROWS + 1, HIDDEN, generator=generator)
        for at, _ in enumerate(spec.aux_layers.layer_ids)
    ]
    return Both(reference, host, tokens, states)


@torch.inference_mode()
def assert_equal_rows(pair: Both) -> None:
    mine = torch.stack(pair.reference.true_rows(pair.tokens.tolist(), pair.states)[0])
    theirs, _ = pair.host.rows(pair.tokens[1:], pair.host.fuse(pair.states)[:ROWS])
    torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=0)
