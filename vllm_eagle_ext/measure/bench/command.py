# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle bench` and `vllm-eagle bench report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, numbers
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.bench.request import BenchRequest
    from vllm_eagle_ext.measure.bench.results import Folder, Settings
    from vllm_eagle_ext.measure.bench.schedule import Turn

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
    ways: parameters.Ways = "none,stock,ours",
    engine: parameters.Engine = "{}",
    speculative: parameters.Speculative = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    synthetic_acceptance: parameters.Synthetic = "",
    dummy: parameters.Dummy = False,
    out: parameters.Out = None,
) -> None:
    """Measure a target without a draft, with stock vLLM and with this package, in turns.

    Every engine is a fresh one. The same command with the same --out goes on where it ended. Exits with
    0, with 1 if the target alone or ours could not be served, with 2 if the request cannot be met.
    """
    if context.invoked_subcommand is None:
        raise typer.Exit(_bench(_request(context.params), out))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The --out of a bench.")],
) -> None:
    """Draw tables and pictures again from what a bench wrote."""
    from vllm_eagle_ext.measure.bench.report import write_report
    from vllm_eagle_ext.measure.bench.results import Folder

    try:
        write_report(Folder(folder), console())
    except EagleExtError as error:
        fail(str(error))


def _request(given: dict[str, Any]) -> BenchRequest:
    """given: the options by name, as typed."""
    from vllm_eagle_ext.measure.bench.request import BenchRequest

    if given["target"] is None:
        raise typer.BadParameter("needed", param_hint="--target")
    read: dict[str, Any] = {
        "drafts": given["draft"] or [],
        "ks": numbers(given["k"], "-k") if given["draft"] else [],
        "concurrency": numbers(given["concurrency"], "--concurrency"),
        "ways": ways_of(given["ways"]),
        "synthetic_acceptance": fractions(given["synthetic_acceptance"]),
    }
    for name in ("engine", "speculative", "eagle_ext"):
        read[name] = json_object(given[name], "--" + name.replace("_", "-"))
    as_they_are = set(BenchRequest.__dataclass_fields__) - set(read)
    return BenchRequest(**read, **{name: given[name] for name in as_they_are})


def _bench(request: BenchRequest, out: Path | None) -> int:
    from vllm_eagle_ext.measure.bench.context import context, invoked
    from vllm_eagle_ext.measure.bench.report import write_report
    from vllm_eagle_ext.measure.bench.request import settle
    from vllm_eagle_ext.measure.bench.results import Folder
    from vllm_eagle_ext.measure.bench.schedule import variants

    path = out or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        settings, prompts = settle(request)
        folder = Folder(path)
        folder.begin(settings, context(invoked()))
        _run(folder, prompts.ids)
        write_report(folder, console())
    except EagleExtError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(
            f"Interrupted. The same command with --out {path} goes on from here; "
            f"`vllm-eagle bench report {path}` shows what there is."
        )
    measured = {m.variant for m in folder.measurements()}
    return int(any(variant not in measured for variant in variants(settings) if variant.way != "stock"))


def _run(folder: Folder, prompts: list[list[int]]) -> None:
    from vllm_eagle_ext.measure.bench.display import ProgressDisplay
    from vllm_eagle_ext.measure.bench.run import run
    from vllm_eagle_ext.measure.bench.schedule import outstanding

    settings, shown = folder.settings(), console()
    template = "with" if settings.chat_template else "without"
    switch = {None: "", True: ", thinking", False: ", not thinking"}[settings.thinking]
    shown.print(
        f"{settings.num_prompts} prompts ({settings.prompts}), {template} chat template{switch}, "
        f"{settings.max_tokens} new tokens, temperature {settings.temperature:g}; "
        f"results in {folder.path}",
        markup=False,
    )
    left = outstanding(settings, folder.engines(), folder.measurements())
    for line in _before(settings, left):
        shown.print(line, markup=False)
    with ProgressDisplay(shown, len(left)) as display:
        run(folder, settings, prompts, display)


def _before(settings: Settings, left: Sequence[Turn]) -> Iterator[str]:
    """How long it will take, and what would spoil it."""
    from vllm_eagle_ext.measure.bench.estimate import guessed_s, said
    from vllm_eagle_ext.measure.engine.machine import BUSY, cores, load_average

    if left:
        yield (
            f"Engines to start: {len(left)}. A small model on a CPU takes about "
            f"{said(guessed_s(settings, left))}; told again after the first. More --repeats, "
            "--num-prompts and --max-tokens take longer and tell more surely."
        )
    load = load_average()
    if load is not None and load > BUSY * cores():
        yield (
            f"Warning: load average {load:.1f} on {cores()} cores. Other work runs on this machine, and "
            "the times will be its as well."
        )


def fractions(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise typer.BadParameter(
            "numbers with commas between", param_hint="--synthetic-acceptance"
        ) from None


def ways_of(text: str) -> list[Any]:
    found = [part for part in text.split(",") if part]
    if not found or set(found) - {"none", "stock", "ours"}:
        raise typer.BadParameter("of none, stock, ours", param_hint="--ways")
    return found
