# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle tune` as typed."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.bench import left_in, typed_request
from vllm_eagle_ext.cli.terminal import console, fail, numbers
from vllm_eagle_ext.errors import EagleExtError


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
    together: parameters.Apart = None,
    prompts: parameters.Prompts = None,
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
    """Find the K that pays at each load on this machine.

    It measures every K and no draft in turns. It prints the acceptance length from which each K pays.
    Then it measures the best candidates and prints a config for vllm serve.

    Exits with 0 if the printed config is never slower than no draft, and with 1 if it is. Exits with 2
    if this cannot be decided.
    """
    from vllm_eagle_ext.measure.bench.run import run_tune

    asked = typed_request(
        context.params,
        drafts=[draft],
        ks=None if lengths is None else numbers(lengths, "--lengths"),
        concurrency=None if concurrency is None else numbers(concurrency, "--concurrency"),
        contexts=numbers(contexts, "--context"),
    )
    path = out or Path(f"tune-{datetime.now():%Y%m%d-%H%M%S}")
    shown = console(stderr=as_json)
    try:
        report = run_tune(asked, path, sys.argv[1:], shown)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except KeyboardInterrupt:
        fail(f"Interrupted. {left_in(path)}", as_json=as_json)
    if as_json:
        typer.echo(json.dumps(report.model_dump(mode="json")))
    raise typer.Exit(report.choice.exit_code if report.choice else 0)
