"""`python -m examples.tiny.train`: trains the tiny pairs and reports loss and acceptance.

Stages can be run apart (`--stage native`); a later stage reads what an earlier one saved. The
committed pairs are frozen: the default output is build/tiny, not this folder.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from .corpus import encode_stream, read_corpus, train_tokenizer
from .draft import DraftShape
from .draft_training import acceptance_per_position, most_frequent_ids, train_draft
from .export import save_draft
from .hybrid_stages import run_dflash, run_hybrid_target, run_hybrid_text
from .progress import training_progress
from .prompts import write_prompts
from .run import PROMPT_LENGTH, Run, write_own_text
from .target import held_out_loss, save_target, train_target

VOCAB_SIZE = 1536
DRAFT_VOCAB_SIZE = 1024
HYBRID = {"hybrid_target": run_hybrid_target, "hybrid_text": run_hybrid_text, "dflash": run_dflash}
STAGES = ("target", "text", "native", "postnorm", "gated", *HYBRID)
K = 4

console = Console()


def draft_shape(name: str, target: LlamaForCausalLM) -> DraftShape:
    layers = target.config.num_hidden_layers
    post_norm = name in ("postnorm", "gated")
    # The native head reads EAGLE-3's default three aux layers; the five of the others are spread from
    # 2 to N-2, the published pattern (ids 1, .., N-3 as outputs of layers).
    spread = tuple(round(2 + i * (layers - 4) / 4) for i in range(5))
    return DraftShape(
        vocab_size=target.config.vocab_size,
        draft_vocab_size=DRAFT_VOCAB_SIZE if post_norm else target.config.vocab_size,
        hidden_size=target.config.hidden_size,
        intermediate_size=768,
        num_heads=target.config.num_attention_heads,
        num_kv_heads=target.config.num_key_value_heads,
        head_dim=target.config.head_dim,
        layer_ids=spread if post_norm else (2, layers // 2, layers - 3),
        post_norm=post_norm,
        gated=name == "gated",
        rms_norm_eps=target.config.rms_norm_eps,
    )


def run_target(run: Run) -> dict[str, Any]:
    tokenizer = train_tokenizer(list(run.corpus.train.values()), VOCAB_SIZE)
    tokenizer.save_pretrained(run.out / "target")
    write_prompts(run.corpus.held_out, tokenizer, run.out / "prompts.jsonl", run.seed)
    stream = encode_stream(tokenizer, list(run.corpus.train.values()))
    model, loss = train_target(
        stream,
        vocab_size=VOCAB_SIZE,
        steps=run.target_steps,
        seed=run.seed,
        progress=run.progress,
    )
    save_target(model, run.out / "target")
    held_out = encode_stream(tokenizer, list(run.corpus.held_out.values()))
    return {"loss": loss, "held_out_loss": held_out_loss(model, held_out)}


def run_text(run: Run) -> dict[str, Any]:
    tokenizer, model = load_target(run.out)
    path = run.out / "own_text.safetensors"
    return write_own_text(run, tokenizer, model, path, train_rows=run.own_rows)


def run_draft(name: str, run: Run) -> dict[str, Any]:
    tokenizer, target = load_target(run.out)
    text = load_file(run.out / "own_text.safetensors")
    stream = encode_stream(tokenizer, list(run.corpus.train.values()))
    shape = draft_shape(name, target)
    kept = most_frequent_ids(
        torch.cat([stream, text["train"].flatten()]), shape.vocab_size, shape.draft_vocab_size
    )
    draft, loss = train_draft(
        target,
        shape,
        kept,
        text["train"],
        stream,
        name=name,
        steps=run.draft_steps,
        seed=run.seed,
        progress=run.progress,
    )
    length = target.config.max_position_embeddings
    save_draft(draft, kept, run.out / name, max_position_embeddings=length)
    acceptance = acceptance_per_position(
        draft, target, kept, text["held_out"], prompt_length=PROMPT_LENGTH, k=K
    )
    return {"loss": loss, "acceptance": acceptance, "acceptance_length": 1 + sum(acceptance)}


def load_target(out: Path) -> tuple[Any, LlamaForCausalLM]:
    model = LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.bfloat16)
    return AutoTokenizer.from_pretrained(out / "target"), model.eval()


def run_stage(name: str, run: Run) -> dict[str, Any]:
    started = time.perf_counter()
    if name == "target":
        row = run_target(run)
    elif name == "text":
        row = run_text(run)
    elif name in HYBRID:
        row = HYBRID[name](run)
    else:
        row = run_draft(name, run)
    return {**row, "minutes": round((time.perf_counter() - started) / 60, 2)}


def print_report(report: dict[str, dict[str, Any]]) -> None:
    table = Table("stage", "minutes", "loss", "held-out loss", "acceptance", "acceptance length")
    for stage, row in report.items():
        table.add_row(
            stage,
            f"{row['minutes']:.1f}" if "minutes" in row else "",
            f"{row['loss']:.3f}" if "loss" in row else "",
            f"{row['held_out_loss']:.3f}" if "held_out_loss" in row else "",
            " ".join(f"{a:.2f}" for a in row.get("acceptance", [])),
            f"{row['acceptance_length']:.2f}" if "acceptance_length" in row else "",
        )
    table.caption = "acceptance on the target's greedy text after held-out prompts"
    console.print(table)


def main(
    out: Annotated[Path, typer.Option(help="Where the checkpoints go.")] = Path("build/tiny"),
    stage: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(STAGES)}.")] = None,
    seed: int = 0,
    target_steps: Annotated[int, typer.Option(min=1)] = 1400,
    draft_steps: Annotated[int, typer.Option(min=1)] = 700,
    own_rows: Annotated[int, typer.Option(min=1, help="Texts the target writes.")] = 2048,
    hybrid_steps: Annotated[int, typer.Option(min=1)] = 950,
    dflash_steps: Annotated[int, typer.Option(min=1)] = 700,
) -> None:
    """Train the tiny target and its drafts; every stage is seeded."""
    wanted = stage or list(STAGES)
    if unknown := set(wanted) - set(STAGES):
        raise typer.BadParameter(f"unknown stage {sorted(unknown)}; allowed: {', '.join(STAGES)}")
    out.mkdir(parents=True, exist_ok=True)
    console.print("Reading the standard library's source files ...")
    corpus = read_corpus()
    report_path = out / "report.json"
    report = json.loads(report_path.read_text()) if report_path.exists() else {}
    for name in STAGES:
        if name in wanted:
            with training_progress(console) as progress:
                run = Run(
                    out,
                    corpus,
                    progress,
                    seed,
                    target_steps=target_steps,
                    draft_steps=draft_steps,
                    own_rows=own_rows,
                    hybrid_steps=hybrid_steps,
                    dflash_steps=dflash_steps,
                )
                report[name] = run_stage(name, run)
            report_path.write_text(json.dumps(report, indent=2) + "\n")
    print_report(report)


if __name__ == "__main__":
    typer.run(main)
