# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of whole engines, replay against the per-token scheme, on a CPU.

    python -m benchmarks.replay_engine_cost

Two settings: the tiny pair one request at a time, and eight requests on a random target of four layers
with the recurrent heads of Qwen3.6-27B. Engines take turns, and each generation's ratio to that of the
other engine of its turn is taken; the first generation of an engine warms it up.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from tests.support.engine import TINY
from tests.support.hybrid import HybridRun, ngram, run_all

RESULTS = Path(__file__).parent / "results"
TURNS, REPEATS = 5, 3


def wide_target(folder: Path) -> Path:
    import torch
    from transformers import AutoTokenizer
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=1600, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=128, full_attention_interval=4,
        linear_num_key_heads=16, linear_num_value_heads=48, linear_key_head_dim=128,
        linear_value_head_dim=128, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0, dtype="bfloat16", mamba_ssm_dtype="float32",
    )  # fmt: skip
    Qwen3_5ForCausalLM(config).bfloat16().save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY / "hybrid_target").save_pretrained(folder)
    return folder


def prompts(count: int) -> list[list[int]]:
    choose = random.Random(0)
    return [[choose.randrange(1, 1500) for _ in range(32)] for _ in range(count)]


def tiny_pair() -> dict[str, Any]:
    lines = (TINY / "prompts.jsonl").read_text().splitlines()[:8]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / "hybrid_target")
    draft = {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": 7}
    texts = [tokenizer(json.loads(line)["text"])["input_ids"][:64] for line in lines]
    return {"prompts": texts, "max_tokens": 64, "concurrency": 1, "speculative": draft}


def compare(common: dict[str, Any], first: list[HybridRun]) -> dict[str, Any]:
    """`first`: runs that the others need, for instance for the texts of their drafts."""
    states = ("per_token", "replay")
    runs = [
        HybridRun(f"{state} {turn}", state=state, repeats=1 + REPEATS, **common)
        for turn in range(TURNS)
        for state in states[:: 1 if turn % 2 else -1]
    ]
    results, log = run_all([*first, *runs])
    for name, result in results.items():
        if "error" in result:
            raise RuntimeError(f"{name}: {result['trace']}\n{log[-2000:]}")
    rates: dict[str, list[float]] = {state: [] for state in states}
    for turn in range(TURNS):
        for state in states:
            result = results[f"{state} {turn}"]
            tokens = sum(map(len, result["tokens"]))
            rates[state] += [tokens / seconds for seconds in result["seconds"][1:]]
    ratios = sorted(a / b for a, b in zip(rates["replay"], rates["per_token"], strict=True))
    counters = results["replay 0"]["counters"]
    return {
        "tokens_per_s": {state: statistics.median(found) for state, found in rates.items()},
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "equal_texts": results["replay 0"]["tokens"] == results["per_token 0"]["tokens"],
        "accepted_per_draft": counters["spec_decode_num_accepted_tokens"]
        / counters["spec_decode_num_drafts"],
    }


def main() -> None:
    found = {"tiny pair, K=7, batch 1": compare(tiny_pair(), [])}
    print(json.dumps(found, indent=1), flush=True)
    with tempfile.TemporaryDirectory() as name:
        target = wide_target(Path(name, "wide"))
        common = {"prompts": prompts(8), "max_tokens": 64, "target": target}
        common["engine_args"] = {"max_num_seqs": 8, "kv_cache_memory_bytes": 4 << 30}
        # The drafts follow what the target writes when it verifies as many rows.
        first = HybridRun("texts", speculative=ngram(15), state="replay", follow="plain", **common)
        plain = HybridRun("plain", **common)
        common |= {"speculative": ngram(15), "follow": "texts", "right": "random"}
        found["27B heads, 4 layers, K=15, batch 8"] = compare(common, [plain, first])
    print(json.dumps(found, indent=1))
    result = {"command": "python -m benchmarks.replay_engine_cost", "machine": machine()}
    result |= {"turns": TURNS, "repeats": REPEATS, "settings": found}
    (RESULTS / "replay_engine_cpu.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
