# SPDX-License-Identifier: Apache-2.0
"""How a check looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.checkpoint import DraftSpec, Severity, TargetFacts
from vllm_eagle_ext.cli.check import CheckResult, serve_command
from vllm_eagle_ext.errors import clipped

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_ORDER = [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def print_check(result: CheckResult, console: Console) -> None:
    inspection = result.inspection
    if inspection.spec is not None:
        console.print(_table(inspection.spec, result.target))
    elif inspection.is_left_to_vllm:
        console.print("Not one of this package's drafts: vLLM serves it as it reads it, unchecked.")
    for finding in sorted(inspection.findings, key=lambda f: _ORDER.index(f.severity)):
        problem = finding.problem
        head = Text(f"{finding.severity.value} {finding.rule}: ", style=_STYLES[finding.severity])
        console.print(head + Text(f"{problem.field} is {clipped(problem.value)}"))
        console.print(f"  allowed: {problem.allowed}", markup=False)
        console.print(f"  to do:   {problem.remedy}", markup=False)
    console.print()
    if result.exit_code:
        count = len(inspection.errors)
        console.print(f"Would be refused: {count} error{'s' if count > 1 else ''}.")
        if all(finding.can_run for finding in inspection.errors):
            console.print('It would run with {"eagle_ext": {"strict": false}}, worse.', markup=False)
        return
    if inspection.spec is None:
        return
    console.print("Would be served. Start it with:")
    console.print(serve_command(result), markup=False)


def _table(spec: DraftSpec, target: TargetFacts) -> Table:
    table = Table(
        title=Text(spec.model), title_justify="left", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(spec, target):
        table.add_row(name, Text(value))
    return table


def _rows(spec: DraftSpec, target: TargetFacts) -> Iterator[tuple[str, str]]:
    layers = "layer" if spec.num_layers == 1 else "layers"
    yield "family", f"{spec.title}, {spec.num_layers} {spec.backbone} {layers}, {spec.format} format"
    if spec.fuses_aux_states:
        yield "boundaries", f"{list(spec.aux_layers.boundaries)} of {target.num_layers}"
        yield "  rule", spec.aux_layers.rule
    if spec.method == "eagle3":
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
        yield "trained on", f"{spec.trained_length} positions"
    if spec.quantisation:
        yield "quantisation", spec.quantisation


def _attention(spec: DraftSpec) -> str:
    kinds = [
        f"{'window ' + str(layer.window) if layer.window else 'full'}"
        f"{'' if layer.causal else ', bidirectional'}"
        for layer in spec.layers
    ]
    gate = f"; gate: {spec.gate}" if spec.gate else ""
    return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) + gate
