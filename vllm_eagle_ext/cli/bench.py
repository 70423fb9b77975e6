# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle bench` and `tune` as typed."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, json_text, numbers, require_engine
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.bench.request import BenchRequest


def bench(
    context: typer.Context,
    target: parameters.NeededTarget,
    draft: parameters.Drafts = None,
    draft_option: parameters.DraftOptions = None,
    k: parameters.Ks = "3",
    concurrency: parameters.Concurrency = "1",
    repeats: parameters.Repeats = 1,
    rounds: parameters.Rounds = 3,
    together: parameters.Together = False,
    prompts: parameters.Prompts = None,
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
    engine: parameters.Engine = "{}",
    speculative: parameters.Speculative = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    synthetic_acceptance: parameters.Synthetic = "",
    dummy: parameters.Dummy = False,
    out: parameters.Out = None,
) -> None:
    """Measure the speed with and without each draft.

    It measures no draft, plain vLLM and vLLM with this package in turns, each in a fresh engine.

    Exits with 0 if all went well. Exits with 1 if the target without a draft, or a draft with this
    package, could not be served. Exits with 2 if the request cannot be met.
    """
    require_engine()
    from vllm_eagle_ext.measure.bench.run import run_bench

    # What was typed becomes a request.
    drafts = [*(draft or ()), *(draft_option or ())]
    asked = _typed_request(
        context.params,
        drafts=drafts,
        ks=numbers(k, "-k") if drafts else [],
        concurrency=numbers(concurrency, "--concurrency"),
        kinds=_variant_kinds(variants),
        synthetic_acceptance=_fractions(synthetic_acceptance),
    )
    # Measure, and end with what was found.
    path = out or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        code = run_bench(asked, path, sys.argv[1:], console())
    except EagleExtError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(f"Interrupted. {_left_in(path)}")
    raise typer.Exit(code if _is_left_in(path) else 2)


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
    require_engine(as_json=as_json)
    from vllm_eagle_ext.measure.bench.run import run_tune

    # What was typed becomes a request.
    asked = _typed_request(
        context.params,
        drafts=[draft],
        ks=None if lengths is None else numbers(lengths, "--lengths"),
        concurrency=None if concurrency is None else numbers(concurrency, "--concurrency"),
        contexts=numbers(contexts, "--context"),
    )
    # Measure; with --json only the report goes to standard output.
    path = out or Path(f"tune-{datetime.now():%Y%m%d-%H%M%S}")
    shown = console(stderr=as_json)
    try:
        report = run_tune(asked, path, sys.argv[1:], shown)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except KeyboardInterrupt:
        fail(f"Interrupted. {_left_in(path)}", as_json=as_json)
    # Print, and end as the choice says.
    code = (report.choice.exit_code if report.choice else 0) if _is_left_in(path) else 2
    if as_json:
        typer.echo(json_text(report.model_dump(), code))
    raise typer.Exit(code)


def _left_in(path: Path) -> str:
    """Say where an interrupted command left what it measured."""
    return f"What was measured is in {path}." if _is_left_in(path) else "No report was written yet."


def _is_left_in(path: Path) -> bool:
    from vllm_eagle_ext.measure.bench.results import REPORT

    return (path / REPORT).exists()


def _typed_request(given: dict[str, Any], **read: Any) -> BenchRequest:
    """Make the request of a command's options by name, as typed.

    Args:
        read: fields that are not as the option of their name.
    """
    from vllm_eagle_ext.measure.bench.request import BenchRequest

    for name in ("engine", "speculative", "eagle_ext"):
        read[name] = json_object(given[name], "--" + name.replace("_", "-"))
    names = set(BenchRequest.__dataclass_fields__) - set(read)
    return BenchRequest(**read, **{name: given[name] for name in names & set(given)})


def _fractions(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise typer.BadParameter(
            "numbers with commas between", param_hint="--synthetic-acceptance"
        ) from None


def _variant_kinds(text: str) -> list[Any]:
    from vllm_eagle_ext.measure.bench.results import KINDS

    found = [part for part in text.split(",") if part]
    if not found or set(found) - set(KINDS):
        raise typer.BadParameter(f"of {', '.join(KINDS)}", param_hint="--variants")
    return found
