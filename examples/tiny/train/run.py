"""What every stage is given, and the lengths of the texts that a target writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .corpus import Corpus, encode_stream, sample_windows
from .target import generate_greedy

PROMPT_LENGTH, NEW_TOKENS = 64, 192
HELD_OUT_ROWS = 96


@dataclass(frozen=True)
class Run:
    out: Path
    corpus: Corpus
    progress: Progress
    seed: int
    target_steps: int
    draft_steps: int
    own_rows: int  # texts that a target writes for its drafts
    hybrid_steps: int
    dflash_steps: int


def write_own_text(
    run: Run,
    tokenizer: PreTrainedTokenizerFast,
    model: PreTrainedModel,
    path: Path,
    *,
    train_rows: int,
) -> dict[str, Any]:
    """The target's greedy text: what its drafts are trained on and measured on."""
    generator = torch.Generator().manual_seed(run.seed)
    text = {}
    for name, files, rows in (
        ("train", run.corpus.train, train_rows),
        ("held_out", run.corpus.held_out, HELD_OUT_ROWS),
    ):
        stream = encode_stream(tokenizer, list(files.values()))
        prompts = sample_windows(stream, rows, PROMPT_LENGTH, generator)
        text[name] = generate_greedy(
            model, prompts, new_tokens=NEW_TOKENS, batch_size=256, progress=run.progress
        )
    save_file(text, path)
    return {"tokens": text["train"].numel()}
