# SPDX-License-Identifier: Apache-2.0
"""DFlash drafting from the formulas, one block at a time.

c_t = RMSNorm(W_fc cat_i h(b_i)_t)                       per committed token, shared by all layers
X   = E[last token, MASK, .., MASK] at positions s..s+K
per layer: m = RMSNorm(X);  q = RMSNorm_q(W_q m),  k = RMSNorm_k(W_k [c, m]),  v = W_v [c, m]
           X += W_o Attn(RoPE(q), RoPE(k), v);  X += SwiGLU(RMSNorm(X))
logits = W_lm RMSNorm(X), rows 1..K; row j predicts the token at position s+j

Where the draft has them: biases; a sink per head, a score that draws weight and gives no value; a scale
of the values; a vocabulary of its own, whose logits are those of the target ids it names.

Two kinds have a second head that makes a block's tokens depend on one another.

DFlash2 (z-lab): around attention and MLP of each layer a short convolution over the block's rows,
    y_t = sum_j (B_j + repeat(W m_t)_j) x_(t-j),  j < taps, t - j >= 0,
whose coefficients before and after the module are both made of the rows m before it. The head takes
the best candidates c of each row and adds what a pair of neighbours is worth:
    score_t(p, c) = logit_t(c) + <P[p] * W_h h_t, S[c]>,  p the token before, and walks left to right.

DSpark (DeepSpec): to the logits of a row a bias of the token before is added, W_2 W_1[p], and the block
is sampled left to right. Its first row is the last sampled token's own, where the draft samples it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from vllm_eagle_ext.measure.reference.eagle3 import (
    Reference,
    ReferenceDraft,
    project,
    rms_norm,
    swiglu,
    under,
)


@dataclass(frozen=True)
class DFlashReference(Reference):
    layers: int
    mask_token: int
    causal: Sequence[bool]  # per layer
    windows: Sequence[int | None]
    value_scale: float = 1.0

    @classmethod
    def shape_of(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that config.json says. No layer is causal or has a window."""
        own = {k: v for k, v in (config.get("dflash_config") or {}).items() if v is not None}
        sizes, layers = {**config, **own}, config["num_hidden_layers"]
        fields = Reference.shape_of(config)
        return fields | {
            "layers": layers,
            "rotary": replace(fields["rotary"], pairs=config.get("is_neox_style") is False),
            "causal": [False] * layers,
            "windows": [None] * layers,
            "mask_token": sizes["mask_token_id"],
            "value_scale": own.get("attention_value_scale", 1.0),
            **cls.second_head(sizes),
        }

    @staticmethod
    def second_head(sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the second head; its sizes stand in `dflash_config` or next to it."""
        return {}

    def true_rows(
        self, tokens: Sequence[int], aux: Sequence[torch.Tensor]
    ) -> tuple[Sequence[int], torch.Tensor]:
        return tokens, self.context(aux)

    @torch.inference_mode()
    def draft(self, start: int, k: int, rows: tuple[Sequence[int], torch.Tensor]) -> ReferenceDraft:
        """Draft the block whose anchor is the token after row `start`; it sees rows up to `start`."""
        (tokens, context), anchor = rows, start + 1
        scores, ids = self.choices(context[:anchor], tokens[anchor], k)
        best = scores.topk(2)
        margins = best.values[:, 0] - best.values[:, 1]
        drafted = ids.gather(1, best.indices[:, :1])[:, 0]
        return ReferenceDraft(drafted.tolist(), margins.tolist(), best.values[:, 0].tolist())

    def context(self, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse the target's states, per aux layer [T, Ht] -> [T, H]."""
        fused = torch.cat(list(aux), dim=-1) @ self.weights["fc.weight"].T
        return rms_norm(fused, self.weights["hidden_norm.weight"], self.eps)

    def logits(self, context: torch.Tensor, anchor: int, k: int) -> torch.Tensor:
        """Compute the logits of K masks: context [s, H] at positions 0..s-1 -> [K, Vd]."""
        return self.hidden(context, anchor, k) @ self.lm_head.T

    def choices(self, context: torch.Tensor, anchor: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what greedy tokens are chosen by: scores [K, C], and the target ids [K, C]."""
        logits = self.logits(context, anchor, k)
        return logits, self.target_ids.expand(k, -1)

    def hidden(self, context: torch.Tensor, anchor: int, k: int) -> torch.Tensor:
        """Return the masks' rows, [K, H]."""
        return self.block(context, anchor, k)[1:]

    def block(self, context: torch.Tensor, anchor: int, masks: int) -> torch.Tensor:
        """Return all rows of the block, [1 + masks, H]."""
        x = self.embed_tokens[torch.tensor([anchor] + [self.mask_token] * masks)]
        for layer in range(self.layers):
            x = self.layer(layer, x, context)
        return rms_norm(x, self.weights["norm.weight"], self.eps)

    def layer(self, layer: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        w = under(self.weights, f"layers.{layer}.")
        m = rms_norm(x, w["input_layernorm.weight"], self.eps)
        a = self.attention(w, m, context, self.causal[layer], self.windows[layer])
        x = x + project(w, "self_attn.o_proj", a)
        return x + swiglu(w, rms_norm(x, w["post_attention_layernorm.weight"], self.eps))

    def attention(
        self,
        w: Mapping[str, torch.Tensor],
        m: torch.Tensor,  # [1 + K, H]
        context: torch.Tensor,  # [s, H]
        causal: bool,
        window: int | None,
    ) -> torch.Tensor:  # [1 + K, heads * d]
        s, rows = len(context), torch.cat([context, m])
        q = project(w, "self_attn.q_proj", m).view(len(m), self.heads, self.head_dim)
        k, v = (
            project(w, f"self_attn.{name}_proj", rows).view(len(rows), self.kv_heads, self.head_dim)
            for name in "kv"
        )
        q = rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
        k = self.norm_keys(w, k, s)
        positions = torch.arange(len(rows))[:, None, None]
        q, k, v = self.rotary(q, positions[s:]), self.rotary(k, positions), v * self.value_scale
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.head_dim**0.5
        distance = (torch.arange(len(m)) + s)[:, None] - torch.arange(len(rows))
        visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible &= distance.abs() < window
        scores = scores.masked_fill(~visible, float("-inf"))
        if (sinks := w.get("self_attn.attention_sink_bias")) is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(m), 1)], dim=-1)
        weights = scores.softmax(-1)[..., : len(rows)]
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def norm_keys(self, w: Mapping[str, torch.Tensor], k: torch.Tensor, _context: int) -> torch.Tensor:
        return rms_norm(k, w["self_attn.k_norm.weight"], self.eps)


@dataclass(frozen=True)
class DFlash2Reference(DFlashReference):
    taps: int = 1
    group: int = 1  # channels that share a coefficient
    candidates: int = 1
    logit_scale: float = 1.0
    soft_cap: float | None = None

    @staticmethod
    def second_head(sizes: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "taps": sizes["conv_kernel_size"],
            "group": sizes["conv_group_size"],
            "candidates": sizes["selector_top_k"],
            "logit_scale": 1.0 if (scale := sizes.get("output_multiplier")) is None else scale,
            "soft_cap": sizes.get("final_logit_softcapping") or None,
        }

    def layer(self, layer: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        w = under(self.weights, f"layers.{layer}.")
        m = rms_norm(x, w["input_layernorm.weight"], self.eps)
        before, after = self.coefficients(w, "attention_conv", m)
        a = self.attention(w, convolve(m, before), context, self.causal[layer], self.windows[layer])
        x = x + convolve(project(w, "self_attn.o_proj", a), after)
        m = rms_norm(x, w["post_attention_layernorm.weight"], self.eps)
        before, after = self.coefficients(w, "mlp_conv", m)
        return x + convolve(swiglu(w, convolve(m, before)), after)

    def coefficients(
        self, w: Mapping[str, torch.Tensor], part: str, m: torch.Tensor
    ) -> torch.Tensor:  # m [T, H] -> [2, T, taps, H]
        made = m @ w[f"{part}.kernel_projection.weight"].T
        made = made.view(len(m), 2, self.taps, -1).repeat_interleave(self.group, dim=-1)
        return w[f"{part}.base_kernel"][:, None] + made.transpose(0, 1)

    def choices(self, context: torch.Tensor, anchor: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.hidden(context, anchor, k)
        logits = self.logit_scale * (h @ self.lm_head.T)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        unary, ids = logits.topk(self.candidates)  # [K, C]
        w = under(self.weights, "candidate_selector.")
        hidden, rows, token = h @ w["hidden_projection.weight"].T, [], anchor
        for row, named in enumerate(ids):
            pair = w["predecessor_codebook"][token] * hidden[row]
            rows.append(unary[row] + w["successor_codebook"][named] @ pair)
            token = int(named[rows[-1].argmax()])
        return torch.stack(rows), ids


@dataclass(frozen=True)
class DSparkReference(DFlashReference):
    samples_anchor: bool = True
    candidates: int | None = None  # only so many of a row's logits are walked

    @staticmethod
    def second_head(sizes: Mapping[str, Any]) -> dict[str, Any]:
        return {"candidates": sizes.get("dspark_draft_topk")}

    def choices(self, context: torch.Tensor, anchor: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        masks = k - 1 if self.samples_anchor else k
        x = self.block(context, anchor, masks)
        base = x[0 if self.samples_anchor else 1 :] @ self.lm_head.T  # [K, Vd]
        if self.candidates is not None:
            least = base.topk(self.candidates).values[:, -1:]
            base = base.masked_fill(base < least, float("-inf"))
        w, rows, token = under(self.weights, "markov_head."), [], anchor
        for row in base:
            rows.append(row + w["markov_w2.weight"] @ w["markov_w1.weight"][token])
            token = int(self.target_ids[rows[-1].argmax()])
        return torch.stack(rows), self.target_ids.expand(k, -1)


def convolve(x: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Convolve x [T, H] by coefficients [T, taps, H] -> [T, H]; rows before the block are zeros."""
    y = coefficients[:, 0] * x
    for tap in range(1, min(coefficients.shape[1], len(x))):
        y[tap:] += coefficients[tap:, tap] * x[:-tap]
    return y
