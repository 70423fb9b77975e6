"""Serves the tiny target three ways, one request at a time, and compares them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .client import ROOT, EngineClient
from .report import Row, picture, table

TINY = Path("examples/tiny")
# Two continuations whose log-probabilities differ by less are a tie in bf16: which one greedy decoding
# takes depends on how many rows the target verifies at once.
TIE_GAP = 0.1

console = Console()


def has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def choose_eager(wanted: bool | None) -> bool:
    """Says why, unless the user asked for it."""
    if not wanted and not has_compiler():
        console.print("No C++ compiler found: running eager, without torch.compile.")
        return True
    if wanted is None and shutil.which("nvidia-smi") is None:
        console.print(
            "Running eager: on a CPU, compiling three engines takes longer than this demo. "
            "`--no-eager` compiles."
        )
        return True
    return bool(wanted)


def engine_arguments(draft: str | None, k: int, eager: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"model": str(TINY / "target"), "enforce_eager": eager}
    if draft is not None:
        arguments["speculative_config"] = {
            "method": "eagle3",
            "model": str(TINY / draft),
            "num_speculative_tokens": k,
        }
    return arguments


def read_prompts(count: int) -> list[str]:
    lines = (ROOT / TINY / "prompts.jsonl").read_text().splitlines()[:count]
    return [json.loads(line)["text"] for line in lines]


def measure(
    client: EngineClient, name: str, prompts: list[str], max_tokens: int, advance: Any
) -> tuple[Row, list[list[int]]]:
    for prompt in prompts[:2]:  # warm-up
        client.ask(decode=prompt, max_tokens=max_tokens)
    before = client.ask(counters=True)
    texts, seconds = [], 0.0
    for prompt in prompts:
        answer = client.ask(decode=prompt, max_tokens=max_tokens)
        texts.append(answer["tokens"])
        seconds += answer["seconds"]
        advance()
    after = client.ask(counters=True)
    accepted = [now - then for now, then in zip(after["accepted"], before["accepted"], strict=True)]
    tokens = sum(len(text) for text in texts)
    return Row(name, tokens, seconds, after["drafts"] - before["drafts"], accepted), texts


def first_difference(left: list[int], right: list[int]) -> int | None:
    pairs = enumerate(zip(left, right, strict=True))
    return next((i for i, (a, b) in pairs if a != b), None)


def agreement(
    client: EngineClient, prompts: list[str], plain: list[list[int]], drafted: list[list[int]]
) -> tuple[int, list[float]]:
    """How many texts are identical, and the target's tie gap where the others part."""
    gaps = []
    for prompt, left, right in zip(prompts, plain, drafted, strict=True):
        at = first_difference(left, right)
        if at is not None:
            gaps.append(client.ask(gap=prompt, tokens=left[:at])["gap"])
    return len(prompts) - len(gaps), gaps


def say_agreement(name: str, same: int, gaps: list[float]) -> None:
    total = same + len(gaps)
    if not gaps:
        console.print(f"{name}: all {total} texts equal those without a draft.")
        return
    worst = max(gaps)
    verdict = "near-ties" if worst <= TIE_GAP else "NOT ALL near-ties"
    console.print(
        f"{name}: {same} of {total} texts equal those without a draft; the others part at {verdict} "
        f"(the target's first two choices there differ by at most {worst:.3f} in log-probability)."
    )


def main(
    k: Annotated[int, typer.Option(help="Drafted tokens per step.", min=1)] = 4,
    prompts: Annotated[int, typer.Option(help="How many prompts.", min=1, max=120)] = 20,
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.", min=8)] = 128,
    out: Annotated[Path, typer.Option(help="Where table, picture and logs go.")] = Path("build/demo"),
    eager: Annotated[
        bool | None, typer.Option(help="Run without torch.compile; on a CPU by default.")
    ] = None,
) -> None:
    """Decode prompts without a draft, with the native draft and with the post-norm draft."""
    eager = choose_eager(eager)
    out.mkdir(parents=True, exist_ok=True)
    texts_in = read_prompts(prompts)
    rows: dict[str, Row] = {}
    texts: dict[str, list[list[int]]] = {}
    agreements: dict[str, tuple[int, list[float]]] = {}
    console.print(
        f"Decoding {prompts} prompts three ways, {max_tokens} tokens each, K={k}; each way starts "
        "an engine of its own, which takes up to a minute."
    )
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        # Without a draft last: that engine then judges where texts differ.
        for name, draft in (("native", "native"), ("post-norm", "postnorm"), ("no draft", None)):
            task = progress.add_task(f"{name}: starting the engine", total=prompts)
            arguments = engine_arguments(draft, k, eager)
            with EngineClient(arguments, out / f"{name.replace(' ', '_')}.log") as client:
                progress.update(task, description=name)
                rows[name], texts[name] = measure(
                    client, name, texts_in, max_tokens, lambda task=task: progress.advance(task)
                )
                if draft is None:
                    for other in ("native", "post-norm"):
                        agreements[other] = agreement(client, texts_in, texts[name], texts[other])
    ordered = [rows["no draft"], rows["native"], rows["post-norm"]]
    console.print(table(ordered, f"tiny target, greedy, K={k}, one request at a time"))
    for name, (same, gaps) in agreements.items():
        say_agreement(name, same, gaps)
    picture(ordered, out / "demo.png")
    console.print(f"Picture: {out / 'demo.png'}; engine logs beside it.")


if __name__ == "__main__":
    typer.run(main)
