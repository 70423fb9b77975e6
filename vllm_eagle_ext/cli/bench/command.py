# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle bench` and `vllm-eagle bench report`, as typed."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, numbers
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.bench.request import BenchRequest

app = typer.Typer(invoke_without_command=True)


@app.callback()
def bench(
    context: typer.Context,
    target: parameters.Target = None,
    draft: parameters.Drafts = None,
    k: parameters.Ks = "3",
    concurrency: parameters.Concurrency = "1",
    repeats: parameters.Repeats = 1,
    rounds: parameters.Rounds = 3,
    together: parameters.Together = False,
    prompts: parameters.Prompts = None,
    dataset_path: parameters.DatasetPath = None,
    num_prompts: parameters.NumPrompts = None,
    prompt_tokens: parameters.PromptTokens = None,
    max_tokens: parameters.MaxTokens = 128,
    temperature: parameters.Temperature = 0.0,
    seed: parameters.Seed = 0,
    ignore_eos: parameters.IgnoreEos = False,
    chat_template: parameters.ChatTemplate = None,
    thinking: parameters.Thinking = None,
    method: parameters.Method = None,
    variants: parameters.Variants = "none,stock,ours",
    config: parameters.ConfigFile = None,
    engine: parameters.Engine = "{}",
    speculative: parameters.Speculative = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    synthetic_acceptance: parameters.Synthetic = "",
    dummy: parameters.Dummy = False,
    out: parameters.Out = None,
) -> None:
    """Measure a target without a draft, with stock vLLM and with this package, in turns.

    Every engine is a fresh one. The same command with the same --out goes on where it ended. Exits with
    0, with 1 if the target alone, ours or the config could not be served, with 2 if the request cannot
    be met.
    """
    if context.invoked_subcommand is None:
        raise typer.Exit(_run_bench(_bench_request(context.params), out))


@app.command("report")
def draw_report(
    folder: Annotated[Path, typer.Argument(help="The --out of a bench.")],
) -> None:
    """Draw tables and pictures again from what a bench wrote."""
    from vllm_eagle_ext.measure.bench.report import write_report
    from vllm_eagle_ext.measure.bench.results import Folder

    try:
        write_report(Folder(folder), console())
    except EagleExtError as error:
        fail(str(error))


def _run_bench(request: BenchRequest, out: Path | None) -> int:
    from vllm_eagle_ext.measure.bench.run import run_bench

    path = out or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        return run_bench(request, path, sys.argv[1:], console())
    except EagleExtError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(
            f"Interrupted. The same command with --out {path} goes on from here; "
            f"`vllm-eagle bench report {path}` shows what there is."
        )


def _bench_request(given: dict[str, Any]) -> BenchRequest:
    """The request of these options by name, as typed."""
    from vllm_eagle_ext.measure.bench.request import BenchRequest

    if given["target"] is None:
        raise typer.BadParameter("needed", param_hint="--target")
    read: dict[str, Any] = {
        "drafts": given["draft"] or [],
        "ks": numbers(given["k"], "-k") if given["draft"] else [],
        "concurrency": numbers(given["concurrency"], "--concurrency"),
        "kinds": kinds_of(given["variants"]),
        "synthetic_acceptance": fractions(given["synthetic_acceptance"]),
    }
    for name in ("engine", "speculative", "eagle_ext"):
        read[name] = json_object(given[name], "--" + name.replace("_", "-"))
    as_they_are = set(BenchRequest.__dataclass_fields__) - set(read)
    return BenchRequest(**read, **{name: given[name] for name in as_they_are})


def fractions(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise typer.BadParameter(
            "numbers with commas between", param_hint="--synthetic-acceptance"
        ) from None


def kinds_of(text: str) -> list[Any]:
    from vllm_eagle_ext.measure.bench.results import KINDS

    found = [part for part in text.split(",") if part]
    if not found or set(found) - set(KINDS):
        raise typer.BadParameter(f"of {', '.join(KINDS)}", param_hint="--variants")
    return found
