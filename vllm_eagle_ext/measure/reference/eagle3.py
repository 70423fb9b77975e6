# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 drafting from the formulas, one row at a time.

Row P holds the token t_{P+1} and the fused feature g_P, stands at position P and predicts t_{P+2}:

    g = W_fc cat_k a_k          a_k = h(b_k), or RMSNorm_k(h(b_k)) with `fc_norm`
    e = RMSNorm(E[t]),  x = RMSNorm(g)
    q, k, v = W cat[e, x];      r = g + W_o Attn(RoPE(q), RoPE(k), v)
    y = r + SwiGLU(RMSNorm(r));  z = RMSNorm(y)
    logits = W_lm z;             the next row's g is y, or z with `norm_output`

Variants: `norm_before_fc` norms the concatenated states; `norm_before_residual` starts r from x; the
Qwen3 type norms each head of q and k; a gated draft multiplies the attention output by sigmoid(gate),
whose rows are q_proj's too or a tensor of their own; a draft without aux states takes g as it is; any
projection of a layer may have a bias; in a layer with a window of w, row P sees only rows P-w+1..P.

P-EAGLE makes all K tokens in one causal pass of these layers. Its first row is EAGLE-3's own. The
others, at the positions after it, hold what is known beforehand: the mask token, and fuse(mask_hidden)
in place of the target's states.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file

from vllm_eagle_ext.draft.tensors import canonical_name
from vllm_eagle_ext.measure.reference.rotary import Rotary, read_rotary


def read_draft_config(folder: Path) -> dict[str, Any]:
    """Read config.json; the layers' block of a speculators config is laid under its own keys."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return {**config.get("transformer_layer_config", {}), **config}


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all files, by canonical name."""
    files = sorted(folder.glob("*.safetensors"))
    return {canonical_name(name): tensor for file in files for name, tensor in load_file(file).items()}


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> Mapping[str, torch.Tensor]:
    """View the tensors of a module, by their names in it."""
    return _Under(tensors, prefix)


class _Under(Mapping[str, torch.Tensor]):
    def __init__(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return f"{self._prefix}{name}" in self._tensors

    def __iter__(self) -> Iterator[str]:
        prefix = self._prefix
        return (name.removeprefix(prefix) for name in self._tensors if name.startswith(prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Recorded(UserDict[str, torch.Tensor]):
    """The same tensors; `read` has the names of those that were looked up."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = super().__getitem__(name)
        self.read.add(name)
        return tensor


KeyValues = list[tuple[torch.Tensor, torch.Tensor]]  # key, value, each [kv heads, d]
Cache = list[KeyValues]  # per row, and in it per layer


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def dequantised(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Multiply eight-bit weights by the scales of their rows."""
    plain = dict(tensors)
    for name in tensors:
        if name.endswith(".weight_scale"):
            weight = name.removesuffix("_scale")
            plain[weight] = tensors[weight].float() * plain.pop(name).float()
    return plain


def project(w: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """Project [.., in] -> [.., out], with the bias where the draft has one."""
    projected = x @ w[f"{name}.weight"].T
    return projected + w[f"{name}.bias"] if f"{name}.bias" in w else projected


def swiglu(w: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    gate, up = project(w, "mlp.gate_proj", x), project(w, "mlp.up_proj", x)
    return project(w, "mlp.down_proj", gate * torch.sigmoid(gate) * up)


@dataclass(frozen=True)
class ReferenceDraft:
    tokens: list[int]
    margins: list[float]  # per token: logit of the first choice minus that of the second
    logits: list[float]  # of the first choices


@dataclass(frozen=True)
class Reference(ABC):
    """What the file of a draft says, what it makes of a whole text, and its draft from one row of it."""

    weights: Mapping[str, torch.Tensor]  # fp32, by canonical name
    embed_tokens: torch.Tensor  # [V, H]
    lm_head: torch.Tensor  # [Vd, H]
    target_ids: torch.Tensor  # [Vd]
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rotary: Rotary

    @classmethod
    def load(cls, folder: Path, embed_tokens: torch.Tensor, target_lm_head: torch.Tensor) -> Self:
        """Load the published file; embeddings and head are the target's where it has none."""
        tensors = dequantised(read_tensors(folder))
        weights = {n: tensor.float() for n, tensor in tensors.items() if tensor.is_floating_point()}
        lm_head = weights.get("lm_head.weight", target_lm_head.float())
        ids = torch.arange(len(lm_head))
        return cls(
            weights=weights,
            embed_tokens=weights.get("embed_tokens.weight", embed_tokens.float()),
            lm_head=lm_head,
            target_ids=ids + tensors["d2t"] if "d2t" in tensors else ids,
            **cls.shape_of(read_draft_config(folder)),
        )

    @staticmethod
    def shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that config.json says."""
        heads = config["num_attention_heads"]
        return {
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "eps": config["rms_norm_eps"],
            "rotary": read_rotary(config),
        }

    @abstractmethod
    def true_rows(self, tokens: Sequence[int], aux: Sequence[torch.Tensor]) -> Any: ...

    @abstractmethod
    def draft(self, start: int, k: int, rows: Any) -> ReferenceDraft: ...


@dataclass(frozen=True)
class Eagle3Reference(Reference):
    fc_norm: bool
    norm_output: bool
    norm_before_residual: bool = False
    gate_layout: str | None = None
    windows: Sequence[int | None] = ()  # per layer; (): none has one

    @staticmethod
    def shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
        flags = ("fc_norm", "norm_output", "norm_before_residual")
        own = {flag: bool(config.get(flag)) for flag in flags}
        return Reference.shape_of(config) | own | {"gate_layout": config.get("gate_layout")}

    def fuse(self, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse the target's states, per aux layer [.., Ht] -> [.., H]."""
        if self.fc_norm:
            aux = [rms_norm(a, self.weights[f"fc_norm.{k}.weight"], self.eps) for k, a in enumerate(aux)]
        joined = torch.cat(list(aux), dim=-1)
        if "input_norm.weight" in self.weights:
            joined = rms_norm(joined, self.weights["input_norm.weight"], self.eps)
        return joined @ self.weights["fc.weight"].T if "fc.weight" in self.weights else joined

    def row(
        self, token: int, g: torch.Tensor, position: int, cache: Cache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one row: logits [Vd] and feedback [H]. Appends the row's key and value to the cache."""
        cache.append([])
        w = self.layer(0)
        e = rms_norm(self.embed_tokens[token], w["input_layernorm.weight"], self.eps)
        x = rms_norm(g, w["hidden_norm.weight"], self.eps)
        start = x if self.norm_before_residual else g
        y = self.mlp(start + self.attention(torch.cat([e, x]), position, cache, 0), 0)
        for layer in range(1, self.layers):  # as in any decoder; only the first reads the embedding
            m = rms_norm(y, self.layer(layer)["input_layernorm.weight"], self.eps)
            y = self.mlp(y + self.attention(m, position, cache, layer), layer)
        z = rms_norm(y, self.weights["norm.weight"], self.eps)
        return self.lm_head @ z, z if self.norm_output else y

    @property
    def layers(self) -> int:
        return sum(name.endswith("mlp.up_proj.weight") for name in self.weights)

    def layer(self, index: int) -> Mapping[str, torch.Tensor]:
        return under(self.weights, f"layers.{index}.")

    def mlp(self, r: torch.Tensor, layer: int) -> torch.Tensor:
        w = self.layer(layer)
        return r + swiglu(w, rms_norm(r, w["post_attention_layernorm.weight"], self.eps))

    def attention(self, u: torch.Tensor, position: int, cache: Cache, layer: int) -> torch.Tensor:
        """Attend from a row, [2H] in the first layer, [H] in others -> [H]; note its key and value."""
        w = self.layer(layer)
        q, gate = self.query_and_gate(w, u)
        k, v = (
            project(w, f"self_attn.{name}_proj", u).view(self.kv_heads, self.head_dim) for name in "kv"
        )
        if "self_attn.q_norm.weight" in w:
            q = rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
            k = rms_norm(k, w["self_attn.k_norm.weight"], self.eps)
        cache[-1].append((self.rotary(k, position), v))
        window = self.windows[layer] if self.windows else None
        seen = cache if window is None else cache[-window:]
        mixed = self.attend(self.rotary(q, position), [row[layer] for row in seen])
        if gate is not None:
            mixed = mixed * self.gate_activation(gate)
        return project(w, "self_attn.o_proj", mixed.flatten())

    def query_and_gate(
        self, w: Mapping[str, torch.Tensor], u: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return query and gate, each [heads, d]; the gate is [heads, 1] where there is one per head."""
        rows = project(w, "self_attn.q_proj", u)
        apart = next((n for n in w if n.startswith("self_attn.g") and n.endswith(".weight")), None)
        if apart is not None:
            gate = project(w, apart.removesuffix(".weight"), u)
            return rows.view(self.heads, -1), gate.view(self.heads, -1)
        if self.gate_layout is None:
            return rows.view(self.heads, self.head_dim), None
        if self.gate_layout == "interleaved":
            both = rows.view(self.heads, -1)
            return both[:, : self.head_dim], both[:, self.head_dim :]
        split = self.heads * self.head_dim
        return rows[:split].view(self.heads, -1), rows[split:].view(self.heads, -1)

    def gate_activation(self, gate: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(gate)

    def attend(self, q: torch.Tensor, rows: KeyValues) -> torch.Tensor:  # [heads, d] -> [heads, d]
        group = self.heads // self.kv_heads
        keys = torch.stack([k for k, _ in rows], dim=1).repeat_interleave(group, dim=0)
        values = torch.stack([v for _, v in rows], dim=1).repeat_interleave(group, dim=0)
        scores = (keys @ q[..., None])[..., 0] / q.shape[-1] ** 0.5  # [heads, rows]
        return (scores.softmax(-1)[..., None] * values).sum(1)

    def true_rows(
        self, tokens: Sequence[int], aux: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], Cache]:
        """Run rows 0..len(tokens)-2 on true target features: per row logits, feedback, and the cache."""
        fused = self.fuse(aux)
        cache: Cache = []
        rows = [self.row(tokens[p + 1], fused[p], p, cache) for p in range(len(tokens) - 1)]
        return [logits for logits, _ in rows], [feedback for _, feedback in rows], cache

    def draft(
        self, start: int, k: int, rows: tuple[list[torch.Tensor], list[torch.Tensor], Cache]
    ) -> ReferenceDraft:
        """Return the chain of k tokens that starts at row `start`, on `true_rows`."""
        logits, g, cache = rows[0][start], rows[1][start], rows[2][: start + 1]
        tokens: list[int] = []
        values: list[list[float]] = []  # of the first and second choice
        for step in range(k):
            if step:
                token, g = self.next_inputs(tokens[-1], g)
                logits, g = self.row(token, g, start + step, cache)
            best = logits.topk(2)
            tokens.append(int(self.target_ids[best.indices[0]]))
            values.append(best.values.tolist())
        return ReferenceDraft(
            tokens, [first - second for first, second in values], [first for first, _ in values]
        )

    def next_inputs(self, token: int, feedback: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return the inputs of the row after one that drafted `token`."""
        return token, feedback


@dataclass(frozen=True)
class PEagleReference(Eagle3Reference):
    mask_token: int = 0

    def next_inputs(self, token: int, feedback: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Give the mask token's inputs, whatever the row before has drafted."""
        hidden = self.weights["mask_hidden"].flatten()  # [n * Ht]
        states = sum(name.startswith("fc_norm.") for name in self.weights) or 1
        return self.mask_token, self.fuse(hidden.chunk(states))
