# SPDX-License-Identifier: Apache-2.0
"""Prints a check on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.checkpoint import DraftSpec, Finding, Severity, TargetFacts
from vllm_eagle_ext.checkpoint.consequences import consequences
from vllm_eagle_ext.errors import sentence
from vllm_eagle_ext.preflight.offline.run import CheckResult
from vllm_eagle_ext.preflight.offline.serve import download_line, not_looked_at, serve_command
from vllm_eagle_ext.preflight.offline.start import Start

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_ORDER = [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def print_check(result: CheckResult, console: Console, *, everything: bool = False) -> None:
    """Print a check.

    Args:
        everything: print errors that follow from others too.
    """
    inspection = result.inspection
    if inspection.spec is not None:
        console.print(_spec_table(inspection.spec, result.target, result.start))
    elif inspection.is_passed_through:
        is_off = result.request.options.get("enabled") is False
        why = "Switched off by the option enabled" if is_off else "Not a supported draft"
        console.print(f"{why}: not checked; plain vLLM loads it.")
    for finding in sorted(inspection.findings, key=lambda f: _ORDER.index(f.severity)):
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
    inspection, platform = result.inspection, result.start.platform
    may_be_meant = result.request.platform == "auto" and platform.name != "cuda"
    other = " For a GPU add --platform cuda." if may_be_meant else ""
    console.print(f"Checked for {platform.name}: {platform.why}.{other}")
    count = len(inspection.causes)
    follow = consequences(inspection.errors)
    more = f", {follow}{'' if everything else ' (--all shows them)'}" if follow else ""
    console.print(f"Would be refused: {count} error{'s' if count > 1 else ''}{more}.")
    if all(finding.can_run for finding in inspection.errors):
        console.print('It would run with {"eagle_ext": {"strict": false}}, worse.', markup=False)


def _print_command(result: CheckResult, console: Console) -> None:
    platform, unseen = result.start.platform, ", ".join(not_looked_at(result))
    console.print(f"Checked for {platform.name}: {platform.why}. Not looked at: {unseen}.")
    download = download_line(result)
    if download:
        console.print("Would be served, from a folder of its own. Download it and start it with:")
        console.print(download, markup=False)
    else:
        console.print("Would be served. Start it with:")
    console.print(serve_command(result), markup=False)


def _spec_table(spec: DraftSpec, target: TargetFacts, start: Start) -> Table:
    table = Table(title=spec.model, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _spec_rows(spec, target, start):
        table.add_row(name, value)
    return table


def _spec_rows(spec: DraftSpec, target: TargetFacts, start: Start) -> Iterator[tuple[str, str]]:
    layers = "layer" if spec.num_layers == 1 else "layers"
    yield "family", f"{spec.title}, {spec.num_layers} {spec.backbone} {layers}, {spec.format} format"
    if spec.fuses_aux_states:
        yield "aux layers", f"inputs of {list(spec.aux_layers.layer_ids)} of {target.num_layers}"
        yield "  rule", spec.aux_layers.rule
    if spec.record.has_flags:
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
    if start.state:
        yield "recurrent state", start.state


def _attention(spec: DraftSpec) -> str:
    kinds = [
        f"{'window ' + str(layer.window) if layer.window else 'full'}"
        f"{'' if layer.causal else ', bidirectional'}"
        for layer in spec.layers
    ]
    gate = f"; gate: {spec.gate}" if spec.gate else ""
    return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) + gate
