# SPDX-License-Identifier: Apache-2.0
"""What the gate adds to a draft step: a gated drafter against one whose q_proj has as many rows.

    python -m benchmarks.gate_cost

The other drafter throws the gate's rows away. One layer of the shape of an 8B draft, in bf16, without
paged attention, whose cost both share; pairs are interleaved, and the ratio of each pair is taken.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import draft_config, write_draft, write_target
from tests.support.drafter import build, resolve

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, VOCAB, DRAFT_VOCAB = 4096, 32, 8, 128, 12288, 1536, 1024
PAIRS, STEPS = 15, 12
BATCHES = (1, 8, 32)


def sizes() -> dict[str, int]:
    return {
        "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": INTER, "vocab_size": VOCAB,
    }  # fmt: skip


def gated_tensors() -> dict[str, torch.Tensor]:
    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) * columns**-0.5).bfloat16()

    layer = {
        "self_attn.q_proj": matrix(2 * HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.k_proj": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.v_proj": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.o_proj": matrix(HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": matrix(INTER, HIDDEN),
        "mlp.up_proj": matrix(INTER, HIDDEN),
        "mlp.down_proj": matrix(HIDDEN, INTER),
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    layer |= {name: torch.ones(HIDDEN).bfloat16() for name in norms}
    return {
        **{f"midlayer.{name}.weight": tensor for name, tensor in layer.items()},
        "fc.weight": matrix(HIDDEN, HIDDEN),
        "norm.weight": torch.ones(HIDDEN).bfloat16(),
        "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
        "d2t": torch.zeros(DRAFT_VOCAB, dtype=torch.long),
    }


def drafter(folder: Path, *, throws_away: bool) -> Any:
    from vllm_eagle_ext.drafters.eagle3.gated_attention import GatedLlamaAttention

    class ThrowsAway(GatedLlamaAttention):
        def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
            qkv, _ = self.qkv_proj(hidden_states)
            q, _, k, v = qkv.split([self.q_size, self.q_size, self.kv_size, self.kv_size], dim=-1)
            q, k = self.rotary_emb(positions, q, k)
            return self.o_proj(self.attn(q, k, v))[0]

    class NoAttention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return q.clone()  # as attention does, it returns a tensor of its own

    speculative = {"method": "eagle3", "num_speculative_tokens": 3}
    config = resolve(folder / "draft", folder / "target", torch.bfloat16, speculative)
    model = build(config, folder / "draft", torch.bfloat16, torch.randn(VOCAB, HIDDEN))
    attention = model.model.layers[0].self_attn
    attention.attn = NoAttention()
    if throws_away:
        attention.__class__ = ThrowsAway
    return model


def step_s(model: Any, tokens: torch.Tensor, states: torch.Tensor) -> float:
    positions = torch.arange(len(tokens))
    started = time.perf_counter()
    for _ in range(STEPS):
        hidden, _ = model(tokens, positions, states)
        model.compute_logits(hidden)
    return (time.perf_counter() - started) / STEPS


def pair(
    gated: Any, plain: Any, tokens: torch.Tensor, states: torch.Tensor, *, swap: bool
) -> tuple[float, float]:
    """Gated and plain, one after the other, in either order."""
    order = (plain, gated) if swap else (gated, plain)
    first, second = (step_s(model, tokens, states) for model in order)
    return (second, first) if swap else (first, second)


@torch.inference_mode()
def measure(folder: Path) -> dict[int, dict[str, float]]:
    gated, plain = (drafter(folder, throws_away=flag) for flag in (False, True))
    found = {}
    for batch in BATCHES:
        tokens = torch.randint(0, VOCAB, (batch,))
        states = torch.randn(batch, HIDDEN).bfloat16()
        for model in (gated, plain):
            step_s(model, tokens, states)
        pairs = [pair(gated, plain, tokens, states, swap=bool(i % 2)) for i in range(PAIRS)]
        ratios = sorted(a / b for a, b in pairs)
        found[batch] = {
            "gated_ms": 1e3 * statistics.median(a for a, _ in pairs),
            "thrown_away_ms": 1e3 * statistics.median(b for _, b in pairs),
            "ratio": statistics.median(ratios),
            "ratio_low": ratios[len(ratios) // 4],
            "ratio_high": ratios[3 * len(ratios) // 4],
        }
    return found


def single_process(store: Path) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            world_size=1, rank=0, local_rank=0, backend="gloo",
            distributed_init_method=f"file://{store}",
        )  # fmt: skip
        initialize_model_parallel(1)


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_target(folder / "target", **sizes())
        config = draft_config(num_aux=1, post_norm=False, draft_vocab_size=DRAFT_VOCAB, **sizes())
        config |= {"attn_output_gate": True, "gate_layout": "interleaved"}
        write_draft(folder / "draft", config, gated_tensors())
        single_process(folder / "store")
        print(json.dumps(measure(folder), indent=1))


if __name__ == "__main__":
    main()
