"""Serves a pair in three variants, one request at a time and eight at a time, and compares them.

All three engines run at the same time, and each prompt goes through them in turn: what else the machine
does then meets them alike. How many prompts there are follows from how fast the first ones went.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from tokenizers import Tokenizer

from examples.dtype import choose_dtype, has_gpu
from examples.smollm2.held_out import Prompt
from vllm_eagle_ext.measure.engine.client import EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.engine.machine import OtherWork, cores

from .pairs import Pair, smollm2, tiny
from .report import Row, by_category, picture, sentences, table

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
LOADS = (1, 8)  # requests at a time
# vLLM's processes poll for a second after a message, and would take a core from the next engine.
IDLE_S = 1.1

console = Console()


def has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def choose_eager(wanted: bool | None) -> bool:
    """Choose eager mode on a CPU; say why, unless the user asked for it."""
    if not wanted and not has_compiler():
        console.print("No C++ compiler found: running eager, without torch.compile.")
        return True
    if wanted is None and not has_gpu():
        console.print(
            "Running eager: on a CPU, compiling three engines takes longer than this demo. "
            "`--no-eager` compiles."
        )
        return True
    return bool(wanted)


@dataclass
class Turns:
    """Sends groups of prompts through the engines, one engine after the other."""

    engines: dict[str, EngineProcess]
    max_tokens: int
    ignore_eos: bool

    def run(
        self, prompts: Iterator[Prompt], requests: int, until: float
    ) -> tuple[list[Row], list[Prompt]]:
        """Return a row for each engine, and the prompts that there was time for."""
        rows = {name: Row(name) for name in self.engines}
        order, sent, slowest = list(self.engines), list[Prompt](), 0.0
        while not sent or time.monotonic() + slowest < until:
            group = list(islice(prompts, requests))
            if len(group) < requests and sent:
                break
            begun = time.monotonic()
            for name in order:
                time.sleep(IDLE_S)
                load = Load(
                    [prompt.ids for prompt in group],
                    requests,
                    self.max_tokens,
                    ignore_eos=self.ignore_eos,
                )
                rows[name].turns.append(self.engines[name].load(load))
            order.reverse()  # who ended goes on
            slowest = max(slowest, time.monotonic() - begun)
            if not sent:
                self._say_count(requests, slowest, until)
            sent += group
        return list(rows.values()), sent

    @staticmethod
    def _say_count(requests: int, seconds: float, until: float) -> None:
        left = max(0.0, until - time.monotonic())
        console.print(
            f"{requests} at a time: the first {requests} took {seconds:.0f} s in all variants, so there "
            f"is time for up to {requests * (1 + int(left / seconds))} prompts."
        )


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Return where two texts part; None: they are equal."""
    if left == right:
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def say_agreement(
    engine: EngineProcess, prompts: list[Prompt], plain: Row, drafted: Row, tie_gap: float
) -> None:
    """Print how many texts are equal, and how near the target's choices are where others part."""
    parted = []
    for prompt, left, right in zip(prompts, plain.texts, drafted.texts, strict=True):
        at = first_difference(left, right)
        if at is not None:
            parted.append(prompt.ids + left[:at])
    total = len(prompts)
    if not parted:
        console.print(f"{drafted.name}: all {total} texts equal those without a draft.")
        return
    tops = [sorted(row.values(), reverse=True) for row in engine.logprobs(parted, 2)]
    worst = max(first - second for first, second in tops)
    verdict = "near-tied logits" if worst <= tie_gap else "logits that are NOT ALL near-tied"
    console.print(
        f"{drafted.name}: {total - len(parted)} of {total} texts equal those without a draft; "
        f"the others diverge at {verdict} (the target's first two choices there differ by at most "
        f"{worst:.3f} in log-probability)."
    )


def main(
    use_tiny: Annotated[bool, typer.Option("--tiny", help="The toy pair, without network.")] = False,
    k: Annotated[int | None, typer.Option(help="Drafted tokens per step.", min=1)] = None,
    prompts: Annotated[int, typer.Option(help="At most so many prompts.", min=1)] = 90,
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.", min=8)] = 96,
    minutes: Annotated[float, typer.Option(help="Time for all, engines' start included.")] = 5.5,
    out: Annotated[Path, typer.Option(help="Where picture and logs go.")] = Path("build/demo"),
    eager: Annotated[
        bool | None, typer.Option(help="Run without torch.compile; on a CPU by default.")
    ] = None,
) -> None:
    """Answer prompts without a draft and with it, one and eight requests at a time."""
    pair = tiny() if use_tiny else smollm2()
    until = time.monotonic() + 60 * minutes
    k, eager, dtype = k or pair.k, choose_eager(eager), choose_dtype()
    out.mkdir(parents=True, exist_ok=True)
    read = pair.read_prompts(prompts)
    with ExitStack() as running:
        started = start(pair, out, running, k=k, eager=eager, dtype=dtype)
        engines = {engine.name: engine for engine in started}
        turns = Turns(engines, max_tokens, ignore_eos=not pair.is_chat)
        serve(pair, turns, read, until, f"greedy, K={k}, {dtype}", out)
    serving = pair.serve.replace('"K"', str(k)).replace("DTYPE", dtype)
    console.print(f"Next, serve the same pair: {serving}", soft_wrap=True, markup=False, highlight=False)
    for line in pair.is_chat * (
        "In another shell, ask it: .venv/bin/python -m examples.client --prompt 'Why is the sky blue?'",
        "To compare, leave out --per-request-spec-decode-metrics summary and --speculative-config.",
        "Ctrl-C ends it.",
    ):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def start(pair: Pair, out: Path, running: ExitStack, **settings: Any) -> list[EngineProcess]:
    """Start an engine for each variant: on a CPU all at once, where each only loads on one core."""
    console.print(f"Starting an engine for each of: {', '.join(v.name for v in pair.variants)} ...")
    engines = [
        EngineProcess(
            pair.arguments(variant, **settings), out / f"{variant.name.replace(' ', '_')}.log",
            name=variant.name, plugin=variant.plugin,
        )
        for variant in pair.variants
    ]  # fmt: skip
    with ThreadPoolExecutor(max_workers=1 if has_gpu() else len(engines)) as pool:
        return list(pool.map(running.enter_context, engines))


def serve(pair: Pair, turns: Turns, read: list[Prompt], until: float, how: str, out: Path) -> None:
    """Let the engines take turns, and print what came of it."""
    for requests in LOADS:  # warm-up
        for engine in turns.engines.values():
            engine.load(Load([read[0].ids] * requests, requests, 8, ignore_eos=True))
    results, sent = {}, list[Prompt]()
    left = iter(read)
    with OtherWork().during() as others:
        for number, requests in enumerate(LOADS):
            if requests > len(read) - len(sent) and sent:
                left = iter(read)  # few prompts: the same ones again
            now = time.monotonic()
            share = now + (until - now) / (len(LOADS) - number)
            results[requests], prompts = turns.run(left, requests, share)
            sent += prompts
    for requests, rows in results.items():
        title = f"{pair.title}, {how}, {requests} request{'s' * (requests > 1)} at a time"
        console.print(table(rows, title, others.cores, cores()))
    both = [
        Row(rows[0].name, [t for row in rows for t in row.turns])
        for rows in zip(*results.values(), strict=True)
    ]
    console.print(by_category(both, [prompt.category for prompt in sent]))
    for requests, rows in results.items():
        for line in sentences(rows):
            console.print(f"At {requests}: {line}", markup=False)
    for row in both[1:]:
        say_agreement(turns.engines[both[0].name], sent, both[0], row, pair.tie_gap)
    picture(results, out / "demo.png")
    console.print(f"Picture: {out / 'demo.png'}; engine logs are next to it.")
    say_text(pair, sent[0], both[1].texts[0])


def say_text(pair: Pair, prompt: Prompt, answer: list[int]) -> None:
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    console.print("The first prompt, and after the bar what came with the draft:")
    console.print(f"{prompt.text}|{tokenizer.decode(answer)}", markup=False, highlight=False)


if __name__ == "__main__":
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    os.chdir(Path(__file__).resolve().parents[2])
    try:
        typer.run(main)
    except EngineFailedError as failure:
        raise SystemExit(str(failure)) from None
