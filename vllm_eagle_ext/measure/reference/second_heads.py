# SPDX-License-Identifier: Apache-2.0
"""DFlash with a second head that makes a block's tokens depend on one another, from the formulas.

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
from pathlib import Path
from typing import Any, Self

import torch

from vllm_eagle_ext.measure.reference.dflash import DFlashReference, first_stated
from vllm_eagle_ext.measure.reference.eagle3 import project, rms_norm, swiglu
from vllm_eagle_ext.measure.reference.weight_files import read_draft_config, under


def _of_heads(folder: Path, *keys: str) -> dict[str, Any]:
    """Return the sizes of the second head, which stand in `dflash_config` or next to it."""
    config = read_draft_config(folder)
    own = config.get("dflash_config") or {}
    return {key: first_stated(own.get(key), config.get(key)) for key in keys}


@dataclass(frozen=True)
class DFlash2Reference(DFlashReference):
    taps: int = 1
    group: int = 1  # channels that share a coefficient
    candidates: int = 1
    logit_scale: float = 1.0
    soft_cap: float | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        embed_tokens: torch.Tensor,
        lm_head: torch.Tensor,
        *,
        causal: Sequence[bool],
        windows: Sequence[int | None],
    ) -> Self:
        found = super().load(folder, embed_tokens, lm_head, causal=causal, windows=windows)
        sizes = _of_heads(
            folder, "conv_kernel_size", "conv_group_size", "selector_top_k",
            "output_multiplier", "final_logit_softcapping",
        )  # fmt: skip
        return replace(
            found,
            taps=sizes["conv_kernel_size"],
            group=sizes["conv_group_size"],
            candidates=sizes["selector_top_k"],
            logit_scale=first_stated(sizes["output_multiplier"], 1.0),
            soft_cap=sizes["final_logit_softcapping"] or None,
        )

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

    @classmethod
    def load(
        cls,
        folder: Path,
        embed_tokens: torch.Tensor,
        lm_head: torch.Tensor,
        *,
        causal: Sequence[bool],
        windows: Sequence[int | None],
    ) -> Self:
        found = super().load(folder, embed_tokens, lm_head, causal=causal, windows=windows)
        return replace(found, candidates=read_draft_config(folder).get("dspark_draft_topk"))

    def choices(self, context: torch.Tensor, anchor: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        masks = k - 1 if self.samples_anchor else k
        x = self.block(context, anchor, masks)
        base = x[0 if self.samples_anchor else 1 :] @ self.lm_head.T  # [K, Vd]
        if self.candidates is not None:
            least = base.topk(self.candidates).values[:, -1:]
            base = base.masked_fill(base < least, float("-inf"))
        ids = torch.arange(base.shape[-1]) if self.target_ids is None else self.target_ids
        w, rows, token = under(self.weights, "markov_head."), [], anchor
        for row in base:
            rows.append(row + w["markov_w2.weight"] @ w["markov_w1.weight"][token])
            token = int(ids[rows[-1].argmax()])
        return torch.stack(rows), ids.expand(k, -1)


def convolve(x: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Convolve x [T, H] by coefficients [T, taps, H] -> [T, H]; rows before the block are zeros."""
    y = coefficients[:, 0] * x
    for tap in range(1, min(coefficients.shape[1], len(x))):
        y[tap:] += coefficients[tap:, tap] * x[:-tap]
    return y
