# SPDX-License-Identifier: Apache-2.0
"""Checks on a terminal, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.cli.terminal import json_text
from vllm_eagle_ext.errors import sentence
from vllm_eagle_ext.printable import bounded, shown

if TYPE_CHECKING:
    from vllm_eagle_ext.draft import DraftSpec, Finding
    from vllm_eagle_ext.start.check import CheckResult
    from vllm_eagle_ext.start.dry import Final

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}  # by severity, the worst first


def to_json(final: Final) -> str:
    """Write valid JSON whatever the config held: values that JSON has no word for become text."""
    return json_text(_plain_json(_parts(final)), final.exit_code)


def _plain_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(inner) for inner in value]
    is_plain = value is None or isinstance(value, bool | int | str)
    return value if is_plain or (isinstance(value, float) and isfinite(value)) else str(value)


def _parts(final: Final) -> dict[str, Any]:
    """Give the parts; `spec` is null for a draft that is passed through or cannot be made out."""
    from vllm_eagle_ext.start.serve import download_line, not_looked_at, serve_command

    result, answer = final.files, final.answer
    inspection = result.inspection
    is_served = inspection.spec is not None and final.verdict != "refused"
    return {
        "draft": result.request.draft,
        "target": result.target_name,
        "spec": spec_as_json(inspection.spec) if inspection.spec else None,
        "left_to_vllm": inspection.is_passed_through,
        "verdict": final.verdict,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "can_run": finding.can_run,
                "follows_from": finding.follows_from,
                **{name: bounded(part) for name, part in asdict(finding.problem).items()},
            }
            for finding in final.findings
        ],
        "files": {"findings": _named(inspection.findings)},
        "engine": {
            "verdict": answer.verdict,
            "why": answer.why or None,
            "described": answer.device,
            "findings": _named(answer.findings),
            "settled": answer.settled or None,
        },
        "platform": {"name": result.platform, "why": result.platform_why},
        "recurrent_state": answer.settled.get("recurrent_state"),
        "not_looked_at": not_looked_at(result, asked=answer.is_asked),
        "download": download_line(result) if is_served else None,
        "command": serve_command(result, further=final.further) if is_served else None,
    }


def _named(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Name what one stage found; `findings` has the parts of what holds."""
    return [
        {"rule": finding.rule, "severity": finding.severity, "field": shown(finding.problem.field)}
        for finding in findings
    ]


def spec_as_json(spec: DraftSpec) -> dict[str, Any]:
    """Give what a draft is, its family and its drafter by their names."""
    drafter = spec.drafter
    parts = {field.name: bounded(getattr(spec, field.name)) for field in fields(spec) if field.repr}
    return parts | {
        "family": spec.family.name,
        "backbone": drafter.backbone.name,
        "method": drafter.method,
        "drafter": drafter.architecture,
    }


def print_files(result: CheckResult, console: Console, *, everything: bool = False) -> None:
    """Print what the files say, before the engine is asked.

    Args:
        everything: print errors that follow from others too.
    """
    inspection = result.inspection
    if inspection.spec is not None:
        spec = inspection.spec
        table = Table(
            title=spec.model, title_justify="left", show_header=False, box=None, pad_edge=False
        )
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _spec_rows(spec, result):
            table.add_row(name, value)
        console.print(table)
    elif inspection.is_passed_through:
        is_off = result.request.options.get("enabled") is False
        why = "Switched off by the option enabled" if is_off else "Not a supported draft"
        console.print(f"{why}: not checked; plain vLLM loads it.")
    _print_findings(inspection.findings, console, everything=everything)


def print_verdict(final: Final, console: Console, *, everything: bool = False) -> None:
    """Print what the engine adds, and the command or the refusal."""
    result, printed = final.files, [_key(finding) for finding in final.files.inspection.findings]
    news = [finding for finding in final.findings if _key(finding) not in printed]
    _print_findings(news, console, everything=everything)
    if state := final.answer.settled.get("recurrent_state"):
        console.print(f"recurrent state   {state}", markup=False)
    if final.answer.is_asked:
        kept = [_key(finding) for finding in final.findings]
        for finding in result.inspection.findings:
            if finding.severity == "error" and _key(finding) not in kept:
                console.print(f"The engine was asked, and finds no fault of {finding.rule}.")
    console.print()
    if final.verdict == "refused":
        _print_refusal(final, console, everything=everything)
    else:
        _print_command(final, console)


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.severity, finding.problem.field


def _print_findings(findings: Iterable[Finding], console: Console, *, everything: bool) -> None:
    worst_first = list(_STYLES)
    for finding in sorted(findings, key=lambda f: worst_first.index(f.severity)):
        if everything or finding.follows_from is None:
            problem = finding.problem
            head = Text(f"{finding.severity.value} {finding.rule}: ", style=_STYLES[finding.severity])
            console.print(head + Text(sentence(problem.field, problem.value)))
            for line in problem.details:
                console.print(f"  {line}", markup=False)


def _print_refusal(final: Final, console: Console, *, everything: bool) -> None:
    from vllm_eagle_ext.draft.inspection import consequences

    result = final.files
    may_be_meant = result.request.platform == "auto" and result.platform != "cuda"
    other = " For a GPU add --platform cuda." if may_be_meant else ""
    console.print(f"{_asked(final)}{other}")
    errors = [finding for finding in final.findings if finding.severity == "error"]
    count = sum(finding.follows_from is None for finding in errors)
    follow = consequences(errors)
    more = f", {follow}{'' if everything else ' (--all shows them)'}" if follow else ""
    console.print(f"Would be refused: {count} error{'s' if count > 1 else ''}{more}.")
    if all(finding.can_run for finding in errors):
        console.print('It would run with {"eagle_ext": {"strict": false}}, worse.', markup=False)


def _asked(final: Final) -> str:
    result, answer = final.files, final.answer
    said = f"Checked for {result.platform}: {result.platform_why}."
    if not answer.is_asked:
        return f"{said} The draft's files were checked; the engine was not asked: {answer.why}."
    from vllm_eagle_ext.start.described import DEVICES
    from vllm_eagle_ext.version import installed_vllm

    device = f" for a described {DEVICES[answer.device].name}" if answer.device else ""
    by = ", by what is installed here" if answer.device else ""
    return f"{said} vLLM {installed_vllm()} was asked{device}{by}."


def _print_command(final: Final, console: Console) -> None:
    from vllm_eagle_ext.start.serve import download_line, not_looked_at, serve_command

    result, answer = final.files, final.answer
    if result.inspection.spec is None:
        console.print(_asked(final))
        console.print("Would be served by plain vLLM." * answer.is_asked)
        return
    unseen = ", ".join(not_looked_at(result, asked=answer.is_asked))
    console.print(f"{_asked(final)} Not looked at: {unseen}.")
    served = "Would be served" if answer.is_asked else "Would be served, by its files"
    download = download_line(result)
    if download:
        console.print(f"{served}, from a folder of its own. Download it and start it with:")
        console.print(download, markup=False)
    else:
        console.print(f"{served}. Start it with:")
    console.print(serve_command(result, further=final.further), markup=False)


def _spec_rows(spec: DraftSpec, result: CheckResult) -> Iterator[tuple[str, str]]:
    from vllm_eagle_ext.memory.parameter_count import head_read

    target, at_once = result.target, spec.family.drafts_in_parallel
    read = head_read(spec.head_bytes, result.text, at_once=at_once)
    layers = "layer" if spec.num_layers == 1 else "layers"
    layers = f"{spec.num_layers} {spec.drafter.backbone.name} {layers}"
    yield "family", f"{spec.title}, {layers}, {spec.format} format"
    if spec.fuses_aux_states:
        yield "aux layers", f"inputs of {spec.aux_layers.by_block} of {target.num_layers}"
        yield "  rule", spec.aux_layers.rule
    if spec.family.has_flags:
        flags = [f"{name} ({flag.source})" for name, flag in spec.flags.items() if flag]
        yield "norms", ", ".join(flags) or "none beyond EAGLE-3's own"
        yield "fed back", "the normalised state" if spec.norm_output else "the raw state"
    else:
        yield "block", f"{spec.block_size or 'size not stated'}, mask token {spec.mask_token_id}"
    yield "attention", _attention(spec)
    yield "vocabulary", f"{spec.vocabulary} of {target.vocab_size}"
    if spec.kept_ids is not None:
        yield "  drafts", f"{len(spec.kept_ids)} tokens (option draft_vocabulary)"
    yield "embeddings, head", f"{spec.embeddings}, {spec.head}"
    if read:
        yield "head reads", str(read)
    yield "rope", str(spec.rope)
    if spec.trained_length:
        most = target.max_position_embeddings
        fewer = f", of the target's {most}" if most and most > spec.trained_length else ""
        yield "positions", f"{spec.trained_length} in its config.json{fewer}"
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
