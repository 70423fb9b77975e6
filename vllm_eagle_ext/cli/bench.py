# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle bench` as typed."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, json_text, numbers, require_engine
from vllm_eagle_ext.errors import EagleExtError

# Options that say how whole texts are decoded, and those that say how steps are timed.
_OF_TEXTS = (
    "repeats", "prompt_tokens", "max_tokens", "ignore_eos", "variants", "synthetic_acceptance", "dummy",
)  # fmt: skip
_OF_SCHEDULE = ("contexts", "steps", "surface_only", "adaptive")


def bench(
    context: typer.Context,
    target: parameters.NeededTarget,
    draft: parameters.Drafts = None,
    k: parameters.Ks = None,
    concurrency: parameters.Concurrency = None,
    rounds: parameters.Rounds = None,
    together: parameters.Together = None,
    prompts: parameters.Prompts = None,
    num_prompts: parameters.NumPrompts = None,
    chat_template: parameters.ChatTemplate = None,
    thinking: parameters.Thinking = None,
    temperature: parameters.Temperature = 0.0,
    seed: parameters.Seed = 0,
    method: parameters.Method = None,
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    engine: parameters.Engine = "{}",
    speculative: parameters.Speculative = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    variants: parameters.Variants = "none,stock,ours",
    repeats: parameters.Repeats = 1,
    max_tokens: parameters.MaxTokens = 128,
    ignore_eos: parameters.IgnoreEos = False,
    synthetic_acceptance: parameters.Synthetic = "",
    dummy: parameters.Dummy = False,
    prompt_tokens: parameters.PromptTokens = None,
    schedule: parameters.Schedule = False,
    contexts: parameters.Contexts = "64,512",
    steps: parameters.Steps = 24,
    surface_only: parameters.SurfaceOnly = False,
    adaptive: parameters.Adaptive = False,
    as_json: parameters.AsJson = False,
    result_dir: parameters.ResultDir = None,
) -> None:
    """Measure drafts against no draft, or find the K that pays.

    It measures no draft, plain vLLM and vLLM with this package in turns, each in a fresh engine. With
    --schedule it times steps of every K and of no draft, and prints the acceptance length from which
    each K pays. Then it measures the best candidates and prints a config for vllm serve.

    Exits with 0 if all went well. Exits with 1 if the target without a draft, or a draft with this
    package, could not be served, or if the printed config is slower than no draft. Exits with 2 if the
    request cannot be met, or the config is perhaps slower.
    """
    require_engine(as_json=as_json)
    from vllm_eagle_ext.measure.bench.results import REPORT
    from vllm_eagle_ext.measure.bench.run import exit_code, run_bench

    # What was typed becomes a request.
    request = _typed_request(context)
    # Measure; with --json only the report goes to standard output.
    path = result_dir or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        report = run_bench(request, path, sys.argv[1:], console(stderr=as_json))
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except KeyboardInterrupt:
        left = f"What was measured is in {path}" if (path / REPORT).exists() else "No report was written"
        fail(f"Interrupted. {left}.", as_json=as_json)
    # Print, and end as the report says.
    code = exit_code(report) if (path / REPORT).exists() else 2
    if as_json:
        typer.echo(json_text(report.model_dump(), code))
    raise typer.Exit(code)


def tune() -> None:
    """Name the command that does it now."""
    line = "`vllm-eagle tune` is now `vllm-eagle bench --schedule`; -k 1,2,4 is what --lengths was."
    fail(line, as_json="--json" in sys.argv)


def _typed_request(context: typer.Context) -> dict[str, Any]:
    """Return the command's options by name, with what they say."""
    from vllm_eagle_ext.measure.bench.results import KINDS

    given, options = context.params, {each.name: each.opts[0] for each in context.command.params}
    for name in _OF_TEXTS if given["schedule"] else _OF_SCHEDULE:
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE":
            when = "without" if given["schedule"] else "only with"
            raise typer.BadParameter(f"{when} --schedule", param_hint=options[name])
    read: dict[str, Any] = {"drafts": given["draft"] or []}
    for name in ("engine", "speculative", "eagle_ext"):
        read[name] = json_object(given[name], options[name])
    if given["target_revision"]:
        read["engine"]["revision"] = given["target_revision"]
    for name, field in {"k": "ks", "concurrency": "concurrency", "contexts": "contexts"}.items():
        typed = given[name]
        read[field] = None if typed is None else numbers(typed, options[name])
    read["kinds"] = [part for part in given["variants"].split(",") if part]
    if not read["kinds"] or set(read["kinds"]) - set(KINDS):
        raise typer.BadParameter(f"of {', '.join(KINDS)}", param_hint="--variants")
    try:
        rates = [float(part) for part in given["synthetic_acceptance"].split(",") if part]
    except ValueError:
        hint = "--synthetic-acceptance"
        raise typer.BadParameter("numbers with commas between", param_hint=hint) from None
    return given | read | {"synthetic_acceptance": rates}
