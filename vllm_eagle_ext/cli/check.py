# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle check`: what a draft is, and whether it will be served rightly; no vLLM starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object
from vllm_eagle_ext.errors import EagleExtError, sentence

if TYPE_CHECKING:
    from vllm_eagle_ext.checkpoint import DraftSpec, Finding, TargetFacts
    from vllm_eagle_ext.checkpoint.draft_files import OnValues
    from vllm_eagle_ext.preflight.check import CheckRequest, CheckResult

_Length = Annotated[
    int | None, typer.Option(min=1, help="Check for this --max-model-len of vllm serve.")
]
_Folder = Annotated[str | None, typer.Option(help="Look for hub files in this folder, as vLLM does.")]
_Platform = Annotated[str, typer.Option(help="Check for cpu or cuda. Default: as the installed vLLM.")]
_Ranks = Annotated[int, typer.Option("--tp", min=1, help="Check for this tensor parallel size.")]
_Caching = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Check for this setting of prefix caching. Default: as vLLM decides.",
    ),
]
_Implementation = Annotated[
    Literal["auto", "vllm", "transformers"] | None,
    typer.Option(help="Check for this --model-impl of vllm serve."),
]
_Options = Annotated[
    str, typer.Option(help='Check for these options of eagle_ext: \'{"aux_layers": "input"}\'.')
]
_Weights = Annotated[bool, typer.Option("--weights", help="Read the values of every tensor too.")]
_All = Annotated[bool, typer.Option("--all", help="Show also the errors that follow from others.")]

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}  # by severity, the worst first


_OF_SPEC = (
    "model", "architecture", "format", "family", "backbone", "method", "drafter", "weights",
    "num_layers", "hidden_size", "target_hidden_size", "heads", "layers", "aux_layers", "fc_norm",
    "norm_output", "norm_before_fc", "norm_before_residual", "gate", "vocabulary", "embeddings", "head",
    "rope", "block_size", "samples_anchor", "mask_token_id", "embedding_scale", "trained_k",
    "trained_length", "draft_window", "quantisation",
)  # fmt: skip


def check(
    draft: Annotated[
        str, typer.Argument(help="Name the folder or hub repository of the draft, or OWNER/NAME/FOLDER.")
    ],
    target: parameters.Target = None,
    k: parameters.K = None,
    method: parameters.Method = None,
    max_model_len: _Length = None,
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    download_dir: _Folder = None,
    platform: _Platform = "auto",
    tp: _Ranks = 1,
    prefix_caching: _Caching = None,
    model_impl: _Implementation = None,
    speculative: parameters.Speculative = "{}",
    eagle_ext: _Options = "{}",
    weights: _Weights = False,
    everything: _All = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Tell whether a draft will be served, and with which command.

    It reads the files of the draft and the target, and loads no model.

    Exits with 0 if the draft will be served, with 1 if it would be refused, and with 2 if it cannot be
    read.
    """
    from vllm_eagle_ext.preflight.check import CheckRequest

    # What was typed becomes a request.
    ours = json_object(eagle_ext, "--eagle-ext")
    further = json_object(speculative, "--speculative")
    engine: dict[str, Any] = {
        "max_model_len": max_model_len, "download_dir": download_dir, "tensor_parallel_size": tp,
        "enable_prefix_caching": prefix_caching, "model_impl": model_impl, "revision": target_revision,
    }  # fmt: skip
    request = CheckRequest(
        draft=draft, target=target, k=k, method=method, revision=revision, options=ours,
        platform=platform, subfolders=True, speculative=further, engine=engine,
    )  # fmt: skip
    # Read the files, and apply the rules.
    try:
        result = _run(request, weights=weights)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    # Print what was found.
    if as_json:
        typer.echo(to_json(result))
    else:
        print_check(result, console(), everything=everything)
    raise typer.Exit(result.exit_code)


def _run(request: CheckRequest, *, weights: bool) -> CheckResult:
    from vllm_eagle_ext.preflight.check import run_check

    if not weights:
        return run_check(request)
    with _progress() as on_values:
        return run_check(request, on_values)


@contextmanager
def _progress() -> Iterator[OnValues]:
    """Show a bar on stderr while weights are read.

    It goes when it is done, and it is absent where stderr is no terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    shown = Console(stderr=True)
    columns: Any = (TextColumn("reading weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda read, total: progress.update(task, completed=read, total=total)


def to_json(result: CheckResult) -> str:
    """Write valid JSON whatever the config held: values that JSON has no word for become text."""
    return json.dumps(_plain_json(_parts(result)), indent=1)


def _plain_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(inner) for inner in value]
    is_plain = value is None or isinstance(value, bool | int | str)
    return value if is_plain or (isinstance(value, float) and isfinite(value)) else str(value)


def _parts(result: CheckResult) -> dict[str, Any]:
    """Give the parts; `spec` is null for a draft that is passed through or cannot be made out."""
    from vllm_eagle_ext.preflight.serve import download_line, not_looked_at, serve_command

    inspection, engine = result.inspection, result.engine
    is_served = inspection.spec is not None and not result.exit_code
    return {
        "draft": result.request.draft,
        "target": result.target_name,
        "spec": spec_as_json(inspection.spec) if inspection.spec else None,
        "left_to_vllm": inspection.is_passed_through,
        "findings": [
            {
                "rule": f.rule,
                "severity": f.severity,
                "can_run": f.can_run,
                "follows_from": f.follows_from,
                **asdict(f.problem),
            }
            for f in inspection.findings
        ],
        "platform": {"name": engine.platform, "why": engine.platform_why},
        "recurrent_state": result.state,
        "not_looked_at": not_looked_at(result),
        "download": download_line(result) if is_served else None,
        "command": serve_command(result) if is_served else None,
        "exit_code": result.exit_code,
    }


def spec_as_json(spec: DraftSpec) -> dict[str, Any]:
    """Give what a draft is, its family and its drafter by their names."""
    drafter = spec.drafter
    names = {
        "family": spec.family.name,
        "backbone": drafter.backbone.name,
        "method": drafter.method,
        "drafter": drafter.architecture,
    }
    return {key: names[key] if key in names else getattr(spec, key) for key in _OF_SPEC}


def print_check(result: CheckResult, console: Console, *, everything: bool = False) -> None:
    """Print a check.

    Args:
        everything: print errors that follow from others too.
    """
    inspection, worst_first = result.inspection, list(_STYLES)
    if inspection.spec is not None:
        console.print(_spec_table(inspection.spec, result.target, result.state))
    elif inspection.is_passed_through:
        is_off = result.request.options.get("enabled") is False
        why = "Switched off by the option enabled" if is_off else "Not a supported draft"
        console.print(f"{why}: not checked; plain vLLM loads it.")
    for finding in sorted(inspection.findings, key=lambda f: worst_first.index(f.severity)):
        if everything or finding.follows_from is None:
            _print_finding(finding, console)
    console.print()
    if result.exit_code:
        _print_refusal(result, console, everything=everything)
    elif inspection.spec is not None:
        _print_command(result, console)


def _print_finding(finding: Finding, console: Console) -> None:
    problem = finding.problem
    head = Text(f"{finding.severity.value} {finding.rule}: ", style=_STYLES[finding.severity])
    console.print(head + Text(sentence(problem.field, problem.value)))
    for line in problem.details:
        console.print(f"  {line}", markup=False)


def _print_refusal(result: CheckResult, console: Console, *, everything: bool) -> None:
    from vllm_eagle_ext.checkpoint.consequences import consequences

    inspection, engine = result.inspection, result.engine
    may_be_meant = result.request.platform == "auto" and engine.platform != "cuda"
    other = " For a GPU add --platform cuda." if may_be_meant else ""
    console.print(f"Checked for {engine.platform}: {engine.platform_why}.{other}")
    count = len(inspection.causes)
    follow = consequences(inspection.errors)
    more = f", {follow}{'' if everything else ' (--all shows them)'}" if follow else ""
    console.print(f"Would be refused: {count} error{'s' if count > 1 else ''}{more}.")
    if all(finding.can_run for finding in inspection.errors):
        console.print('It would run with {"eagle_ext": {"strict": false}}, worse.', markup=False)


def _print_command(result: CheckResult, console: Console) -> None:
    from vllm_eagle_ext.preflight.serve import download_line, not_looked_at, serve_command

    engine, unseen = result.engine, ", ".join(not_looked_at(result))
    console.print(f"Checked for {engine.platform}: {engine.platform_why}. Not looked at: {unseen}.")
    download = download_line(result)
    if download:
        console.print("Would be served, from a folder of its own. Download it and start it with:")
        console.print(download, markup=False)
    else:
        console.print("Would be served. Start it with:")
    console.print(serve_command(result), markup=False)


def _spec_table(spec: DraftSpec, target: TargetFacts, state: str | None) -> Table:
    table = Table(title=spec.model, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _spec_rows(spec, target, state):
        table.add_row(name, value)
    return table


def _spec_rows(spec: DraftSpec, target: TargetFacts, state: str | None) -> Iterator[tuple[str, str]]:
    layers = "layer" if spec.num_layers == 1 else "layers"
    layers = f"{spec.num_layers} {spec.drafter.backbone.name} {layers}"
    yield "family", f"{spec.title}, {layers}, {spec.format} format"
    if spec.fuses_aux_states:
        yield "aux layers", f"inputs of {list(spec.aux_layers.layer_ids)} of {target.num_layers}"
        yield "  rule", spec.aux_layers.rule
    if spec.family.has_flags:
        stated = [f"{name} ({flag.source})" for name, flag in spec.flags.items() if flag]
        yield "norms", ", ".join(stated) or "none beyond EAGLE-3's own"
        yield "fed back", "the normalised state" if spec.norm_output else "the raw state"
    else:
        yield "block", f"{spec.block_size or 'size not stated'}, mask token {spec.mask_token_id}"
    yield "attention", _attention(spec)
    yield "vocabulary", f"{spec.vocabulary} of {target.vocab_size}"
    yield "embeddings, head", f"{spec.embeddings}, {spec.head}"
    yield "rope", str(spec.rope)
    if spec.trained_length:
        yield "positions", f"{spec.trained_length} in its config.json"
    if spec.quantisation:
        yield "quantisation", spec.quantisation
    if state:
        yield "recurrent state", state


def _attention(spec: DraftSpec) -> str:
    kinds = [
        f"{'window ' + str(layer.window) if layer.window else 'full'}"
        f"{'' if layer.causal else ', bidirectional'}"
        for layer in spec.layers
    ]
    gate = f"; gate: {spec.gate}" if spec.gate else ""
    return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) + gate
