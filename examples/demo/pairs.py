"""What the demo serves: SmolLM2-135M with its draft, or (TINY=1) the toy pair, without network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.smollm2 import held_out
from examples.smollm2.held_out import Prompt
from vllm_eagle_ext.measure.prompts import read_prompts, token_ids

TINY = Path("examples/tiny")
SMOLLM2 = Path("examples/smollm2")


@dataclass(frozen=True)
class Variant:
    """One reading of a pair, with an engine of its own."""

    name: str
    draft: Path | None = None
    plugin: bool = True  # False: plain vLLM, without this package


@dataclass(frozen=True)
class Pair:
    """A target, and how it is served. Its prompts are in no row of training."""

    title: str
    target: Path
    variants: tuple[Variant, ...]  # the first has no draft
    k: int
    # Two continuations whose log-probabilities differ by no more are a tie in bf16: which one greedy
    # decoding takes depends on how many rows the target verifies at once.
    tie_gap: float
    is_chat: bool  # of held-out chats; else of source files
    serve: str  # the command that serves it, with "K" and DTYPE to fill in

    def read_prompts(self, count: int) -> list[Prompt]:
        if self.is_chat:
            return held_out.read(self.target, count)
        texts = [text for text, _ in read_prompts(str(TINY / "prompts.jsonl"), count=count)]
        ids = token_ids(texts, str(self.target), chat_template=False).ids
        return [Prompt(text, "code", row) for text, row in zip(texts, ids, strict=True)]

    def arguments(self, variant: Variant, k: int, eager: bool, dtype: str) -> dict[str, Any]:
        """Return keywords of LLM()."""
        drafting = {"method": "eagle3", "model": str(variant.draft), "num_speculative_tokens": k}
        arguments = {
            "model": str(self.target), "dtype": dtype, "enforce_eager": eager, "max_model_len": 1024,
            "max_num_seqs": 8, "gpu_memory_utilization": 0.3,
        }  # fmt: skip
        return arguments | ({"speculative_config": drafting} if variant.draft else {})


def tiny() -> Pair:
    variants = (
        Variant("no draft"), Variant("native", TINY / "native"), Variant("post-norm", TINY / "postnorm")
    )  # fmt: skip
    return Pair(
        "tiny target", TINY / "target", variants, k=4, tie_gap=0.1, is_chat=False,
        serve="make serve",
    )  # fmt: skip


def smollm2() -> Pair:
    """Return the real pair; the first time its target is downloaded, 93 MB."""
    from examples.smollm2.fetch import fetch

    try:
        target = fetch()
    except SystemExit as error:
        raise SystemExit(f"{error}\nThe toy pair needs no network: make demo TINY=1") from None
    draft = SMOLLM2 / "draft"
    variants = (Variant("no draft"), Variant("ours", draft), Variant("plain vLLM", draft, plugin=False))
    config = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": "K"}
    serve = (
        f".venv/bin/python tools/preload.py .venv/bin/vllm serve {target} --host 127.0.0.1 "
        "--served-model-name smollm2 --max-model-len 2048 --gpu-memory-utilization 0.3 --dtype DTYPE "
        "--enforce-eager --per-request-spec-decode-metrics summary "
        f"--speculative-config '{json.dumps(config)}'"
    )
    return Pair(
        "SmolLM2-135M-Instruct", target, variants,
        # By the table of examples/smollm2/README.md (length over step), at one request K = 2 gains
        # within 4 % of the best K, in bfloat16 (K = 3) and in float32. At eight it is better than K = 3
        # in both, but in bfloat16 only K = 1 gains. `bench --schedule` finds the K of each load.
        k=2,
        tie_gap=0.25,  # two steps of bf16 where this target's largest logits lie, between 16 and 32
        is_chat=True,
        serve=serve,
    )  # fmt: skip
