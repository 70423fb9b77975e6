# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle tune` as typed."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, numbers
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.tune.request import TuneRequest


def tune(
    context: typer.Context,
    draft: parameters.Draft,
    target: parameters.NeededTarget,
    k: parameters.K = None,
    lengths: parameters.Lengths = None,
    concurrency: parameters.Levels = None,
    contexts: parameters.Contexts = "64,512",
    rounds: parameters.TuneRounds = 6,
    steps: parameters.Steps = 24,
    surface_only: parameters.SurfaceOnly = False,
    adaptive: parameters.Adaptive = False,
    together: parameters.Beside = None,
    prompts: parameters.Prompts = None,
    dataset_path: parameters.DatasetPath = None,
    num_prompts: parameters.AllPrompts = None,
    chat_template: parameters.ChatTemplate = None,
    thinking: parameters.Thinking = None,
    temperature: parameters.Temperature = 0.0,
    seed: parameters.Seed = 0,
    method: parameters.Method = None,
    engine: parameters.Engine = "{}",
    speculative: parameters.Speculative = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    as_json: parameters.AsJson = False,
    out: parameters.TuneOut = None,
) -> None:
    """Find the K that pays at each load on this machine, and print the config that serves it.

    Measures every K and no draft in turns, prints the acceptance length from which each K pays, then
    measures what may be served. The same command with the same --out goes on where it ended. Exits
    with 0 if the printed config is nowhere slower than no draft, with 1 if it is, with 2 if it cannot be
    told.
    """
    from vllm_eagle_ext.measure.tune.run import run_tune

    path = out or Path(f"tune-{datetime.now():%Y%m%d-%H%M%S}")
    shown = Console(stderr=True, soft_wrap=True, highlight=False) if as_json else console()
    try:
        report = run_tune(_tune_request(context.params), path, sys.argv[1:], shown)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except KeyboardInterrupt:
        fail(f"Interrupted. The same command with --out {path} goes on from here.", as_json=as_json)
    if as_json:
        typer.echo(report.model_dump_json())
    raise typer.Exit(report.exit_code)


def _tune_request(given: dict[str, Any]) -> TuneRequest:
    """The request of these options by name, as typed."""
    from vllm_eagle_ext.measure.tune.request import TuneRequest

    read: dict[str, Any] = {
        "lengths": _numbers(given["lengths"], "--lengths"),
        "requests": _numbers(given["concurrency"], "--concurrency"),
        "contexts": numbers(given["contexts"], "--context"),
    }
    for name in ("engine", "speculative", "eagle_ext"):
        read[name] = json_object(given[name], "--" + name.replace("_", "-"))
    as_they_are = set(TuneRequest.__dataclass_fields__) - set(read)
    return TuneRequest(**read, **{name: given[name] for name in as_they_are})


def _numbers(text: str | None, hint: str) -> list[int] | None:
    return None if text is None else numbers(text, hint)
