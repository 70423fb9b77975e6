# SPDX-License-Identifier: Apache-2.0
"""A dense pair for long contexts, made of the committed one: its target goes on training on windows of
8,192 tokens with a slower rope, and its post-norm draft on texts of 256 tokens, as before.

    python -m benchmarks.long_pair [--out build/long_pair]

writes `target/` and `postnorm/`, which benchmarks/draft_window.py measures. About an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from examples.tiny.train.__main__ import DRAFT_VOCAB_SIZE, draft_shape, load_target
from examples.tiny.train.corpus import encode_stream, read_corpus, sample_windows
from examples.tiny.train.draft_training import most_frequent_ids, train_draft
from examples.tiny.train.export import save_draft
from examples.tiny.train.optim import build_optimizers, set_learning_rate, update
from examples.tiny.train.progress import training_progress
from examples.tiny.train.run import Run, write_own_text

COMMITTED = Path("examples/tiny")
POSITIONS, THETA = 10240, 2e5
LONG, MIDDLE, LONG_SHARE = 8192, 2048, 0.5
RATE = 0.25  # of the peak rates that the target was trained with


def train_on(model: LlamaForCausalLM, stream: torch.Tensor, steps: int, progress: Progress) -> None:
    """One window of LONG tokens a step, or four of MIDDLE."""
    generator = torch.Generator().manual_seed(0)
    optimizers, task, losses = build_optimizers(model), progress.add_task("target", total=steps), []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] *= RATE
    for step in range(steps):
        is_long = torch.rand((), generator=generator) < LONG_SHARE
        count, length = (1, LONG) if is_long else (LONG // MIDDLE, MIDDLE)
        windows = sample_windows(stream, count, length + 1, generator)
        set_learning_rate(optimizers, step, steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(windows[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        update(model, loss, optimizers)
        losses.append(loss.item())
        mean = sum(losses[-20:]) / len(losses[-20:])
        progress.update(task, advance=1, description=f"target loss {mean:.3f}")


@torch.inference_mode()
def loss_by_position(model: LlamaForCausalLM, stream: torch.Tensor, rows: int = 6) -> dict[str, float]:
    """Mean next-token loss on held-out text, by where in a window of LONG tokens a token stands."""
    windows = sample_windows(stream, rows, LONG + 1, torch.Generator().manual_seed(1))
    edges, losses = [0, 512, 1024, 2048, 4096, LONG], []
    for window in windows:
        logits = model(window[None, :-1], use_cache=False).logits[0].float()
        losses.append(F.cross_entropy(logits, window[1:], reduction="none"))
    mean = torch.stack(losses).mean(0)
    return {
        f"{a}-{b}": round(float(mean[a:b].mean()), 3) for a, b in zip(edges, edges[1:], strict=False)
    }


def make_target(out: Path, steps: int, progress: Progress) -> dict[str, float]:
    shutil.copytree(COMMITTED / "target", out / "target", dirs_exist_ok=True)
    tokenizer, corpus = AutoTokenizer.from_pretrained(out / "target"), read_corpus()
    model = LlamaForCausalLM.from_pretrained(COMMITTED / "target", dtype=torch.float32)
    model.config.max_position_embeddings = POSITIONS
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": THETA}
    path = out / "stretched"
    model.save_pretrained(path)  # loaded anew, so that the rope is the slower one
    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    shutil.rmtree(path)
    train_on(model, encode_stream(tokenizer, list(corpus.train.values())), steps, progress)
    for old in (out / "target").glob("model*"):
        old.unlink()
    model = model.bfloat16().eval()
    model.save_pretrained(out / "target")
    return loss_by_position(model, encode_stream(tokenizer, list(corpus.held_out.values())))


def make_draft(out: Path, steps: int, rows: int, progress: Progress) -> float:
    tokenizer, target = load_target(out)
    corpus = read_corpus()
    run = Run(out, corpus, progress, 0, 0, steps, rows, 0, 0)
    write_own_text(run, tokenizer, target, out / "own_text.safetensors", train_rows=rows)
    text = load_file(out / "own_text.safetensors")["train"]
    stream = encode_stream(tokenizer, list(corpus.train.values()))
    shape = draft_shape("postnorm", target)
    kept = most_frequent_ids(torch.cat([stream, text.flatten()]), shape.vocab_size, DRAFT_VOCAB_SIZE)
    draft, loss = train_draft(
        target, shape, kept, text, stream, name="postnorm", steps=steps, seed=0, progress=progress
    )
    save_draft(draft, kept, out / "postnorm", max_position_embeddings=POSITIONS)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/long_pair"))
    parser.add_argument("--target-steps", type=int, default=160)
    parser.add_argument("--draft-steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=1024, help="texts that the target writes")
    parser.add_argument("--only", choices=["target", "draft"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    report, started = {}, time.perf_counter()
    with training_progress(Console()) as progress:
        if arguments.only != "draft":
            report["held_out_loss"] = make_target(arguments.out, arguments.target_steps, progress)
        if arguments.only != "target":
            report["draft_loss"] = make_draft(
                arguments.out, arguments.draft_steps, arguments.rows, progress
            )
    report["minutes"] = round((time.perf_counter() - started) / 60, 1)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
