"""Serves the tiny target in three variants, one request at a time, and compares them.

All three engines run at the same time, and each prompt goes through them in turn, several passes long:
what else the machine does then meets them alike, and what is left of it shows between the passes.
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from tokenizers import Tokenizer

from vllm_eagle_ext.measure.engine.client import EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.engine.machine import OtherWork, cores, fallback_warning
from vllm_eagle_ext.measure.prompts import read_texts, token_ids

from .report import Row, over_the_passes, picture, table

TINY = Path("examples/tiny")
VARIANTS = {"no draft": None, "native": "native", "post-norm": "postnorm"}  # name -> draft
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
# Two continuations whose log-probabilities differ by less are a tie in bf16: which one greedy decoding
# takes depends on how many rows the target verifies at once.
TIE_GAP = 0.1

# vLLM's processes poll for a second after a message, and would take a core from the next engine.
IDLE_S = 1.1

Arguments = Callable[[str | None], dict[str, Any]]  # a draft -> keywords of LLM()
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


def choose_dtype() -> str:
    """Choose float32 where the CPU has no kernel for bfloat16, and print the reason."""
    said = list(fallback_warning({}))
    for line in said:
        console.print(f"{line} This demo serves in float32.", markup=False)
    return "float32" if said else "auto"


def engine_arguments(draft: str | None, k: int, eager: bool, dtype: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(TINY / "target"),
        "dtype": dtype,
        "enforce_eager": eager,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.3,
    }
    if draft is not None:
        arguments["speculative_config"] = {
            "method": "eagle3",
            "model": str(TINY / draft),
            "num_speculative_tokens": k,
        }
    return arguments


def read_prompts(count: int) -> list[list[int]]:
    texts = read_texts(str(TINY / "prompts.jsonl"), count=count)
    return token_ids(texts, str(TINY / "target"), chat_template=False).ids


def measure(
    engines: dict[str, EngineProcess],
    prompts: list[list[int]],
    passes: int,
    max_tokens: int,
    advance: Callable[[], None],
) -> tuple[dict[str, Row], dict[str, list[list[int]]]]:
    """Rows and texts by the engines' names."""
    rows = {name: Row(name) for name in engines}
    texts: dict[str, list[list[int]]] = {name: [] for name in engines}
    for engine in engines.values():  # warm-up
        engine.load(Load(prompts[:2], max_tokens=max_tokens, ignore_eos=True))
    order = list(engines)
    for number in range(passes):
        for prompt in prompts:
            for place, name in enumerate(order):
                if place:
                    time.sleep(IDLE_S)
                found = engines[name].load(Load([prompt], max_tokens=max_tokens, ignore_eos=True))
                rows[name].add(number, found)
                if number == 0:
                    texts[name] += found.texts
            order.reverse()  # who ended goes on
            advance()
    return rows, texts


def first_difference(left: list[int], right: list[int]) -> int | None:
    pairs = enumerate(zip(left, right, strict=True))
    return next((i for i, (a, b) in pairs if a != b), None)


def agreement(
    engine: EngineProcess, prompts: list[list[int]], plain: list[list[int]], drafted: list[list[int]]
) -> tuple[int, list[float]]:
    """How many texts are identical, and the target's tie gap where the others part."""
    parted = []
    for prompt, left, right in zip(prompts, plain, drafted, strict=True):
        at = first_difference(left, right)
        if at is not None:
            parted.append(prompt + left[:at])
    tops = [sorted(row.values(), reverse=True) for row in engine.logprobs(parted, 2)] if parted else []
    return len(prompts) - len(parted), [first - second for first, second in tops]


def say_agreement(name: str, same: int, gaps: list[float]) -> None:
    total = same + len(gaps)
    if not gaps:
        console.print(f"{name}: all {total} texts equal those without a draft.")
        return
    worst = max(gaps)
    verdict = "near-tied logits" if worst <= TIE_GAP else "logits that are NOT ALL near-tied"
    console.print(
        f"{name}: {same} of {total} texts equal those without a draft; the others diverge at {verdict} "
        f"(the target's first two choices there differ by at most {worst:.3f} in log-probability)."
    )


def main(
    k: Annotated[int, typer.Option(help="Drafted tokens per step.", min=1)] = 4,
    prompts: Annotated[int, typer.Option(help="How many prompts.", min=1, max=120)] = 20,
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.", min=8)] = 128,
    passes: Annotated[int, typer.Option(help="How often.", min=1)] = 3,
    out: Annotated[Path, typer.Option(help="Where table, picture and logs go.")] = Path("build/demo"),
    eager: Annotated[
        bool | None, typer.Option(help="Run without torch.compile; on a CPU by default.")
    ] = None,
) -> None:
    """Decode prompts without a draft, with the native draft and with the post-norm draft."""
    eager, dtype = choose_eager(eager), choose_dtype()
    out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"Decoding {prompts} prompts in three variants, {max_tokens} tokens each, K={k}, {passes} "
        "times. Each variant has an engine of its own, which takes up to a minute to start."
    )
    arguments = functools.partial(engine_arguments, k=k, eager=eager, dtype=dtype)
    ids = read_prompts(prompts)
    found = decode_variants(ids, passes, max_tokens, arguments, out)
    rows = [found.rows[name] for name in VARIANTS]
    console.print(table(rows, f"tiny target, greedy, K={k}, one request at a time"))
    for line in over_the_passes(rows, found.other_cores, cores()):
        console.print(line, markup=False)
    for name, (same, gaps) in found.agreements.items():
        say_agreement(name, same, gaps)
    picture(rows, out / "demo.png")
    console.print(f"Picture: {out / 'demo.png'}; engine logs are next to it.")
    say_text(ids[0], found.texts["post-norm"][0])
    console.print("Next, serve the same pair: make serve")


@dataclass(frozen=True)
class Found:
    rows: dict[str, Row]
    texts: dict[str, list[list[int]]]
    agreements: dict[str, tuple[int, list[float]]]
    other_cores: float  # that other work kept busy meanwhile


def decode_variants(
    prompts: list[list[int]], passes: int, max_tokens: int, arguments: Arguments, out: Path
) -> Found:
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress, ExitStack() as running:
        task = progress.add_task("", total=passes * len(prompts))
        engines = {}
        for name, draft in VARIANTS.items():
            progress.update(task, description=f"{name}: starting the engine")
            log = out / f"{name.replace(' ', '_')}.log"
            engines[name] = running.enter_context(EngineProcess(arguments(draft), log, name=name))
        progress.update(task, description="decoding")
        advance = functools.partial(progress.advance, task)
        with OtherWork().during() as others:
            rows, texts = measure(engines, prompts, passes, max_tokens, advance)
        judge = engines["no draft"]
        agreements = {
            name: agreement(judge, prompts, texts["no draft"], texts[name])
            for name, draft in VARIANTS.items()
            if draft is not None
        }
    return Found(rows, texts, agreements, others.cores)


def say_text(prompt: list[int], answer: list[int]) -> None:
    tokenizer = Tokenizer.from_file(str(TINY / "target/tokenizer.json"))
    console.print("The first prompt, and after the bar what came with the post-norm draft:")
    text = f"{tokenizer.decode(prompt)}|{tokenizer.decode(answer)}"
    console.print(text, markup=False, highlight=False)


if __name__ == "__main__":
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    os.chdir(Path(__file__).resolve().parents[2])
    try:
        typer.run(main)
    except EngineFailedError as failure:
        raise SystemExit(str(failure)) from None
