"""`python -m examples.smollm2.accept DRAFT`: acceptance served, next to what the training code counts.

An engine answers the prompts of held_out.jsonl greedily with the draft. Then the training code walks the
same answers. Where both agree per position, the draft is served as it was trained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from examples.smollm2 import held_out
from examples.smollm2.fetch import FOLDER, fetch
from examples.smollm2.train import DRAFT_VOCABULARY, DTYPE, Row, acceptance, load, new_draft
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.load import Load


def main(
    draft: Annotated[Path, typer.Argument(help="The draft's folder.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Drafted tokens per step.")] = 3,
    count: Annotated[int, typer.Option(min=1, help="Prompts, of 90.")] = 90,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens of an answer.")] = 128,
) -> None:
    """Compare acceptance as served with acceptance in the training code."""
    from transformers import AutoModelForCausalLM

    target = str(fetch(FOLDER))
    prompts = [prompt.ids for prompt in held_out.read(target, count)]
    arguments = {
        "model": target, "dtype": str(DTYPE).removeprefix("torch."), "enforce_eager": True,
        "max_model_len": 1024, "max_num_seqs": 8, "gpu_memory_utilization": 0.3,
        "speculative_config": {"method": "eagle3", "model": str(draft), "num_speculative_tokens": k},
    }  # fmt: skip
    with EngineProcess(arguments, FOLDER / "accept.log") as engine:
        answered = engine.load(Load(prompts, concurrency=8, max_tokens=max_tokens))
    served = [accepted / answered.drafts for accepted in answered.accepted]
    print(f"served:        {_shown(served)}", flush=True)
    rows = [
        Row(prompt + answer, len(prompt), greedy=True)
        for prompt, answer in zip(prompts, answered.texts, strict=True)
        if len(answer) > k + 2
    ]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=DTYPE).eval()
    is_native = "fc_norm" not in json.loads((draft / "config.json").read_text())
    trained = new_draft(model, torch.arange(DRAFT_VOCABULARY), is_native)
    print(f"training code: {_shown(acceptance(trained, model, load(trained, draft), rows, k))}")


def _shown(shares: list[float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares) + f", length {1 + sum(shares):.2f}"


if __name__ == "__main__":
    typer.run(main)
