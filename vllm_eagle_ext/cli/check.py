# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle check`: what a draft is and whether it will be served rightly, without starting vLLM."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from vllm_eagle_ext.checkpoint import (
    DraftSpec,
    Inspection,
    Setting,
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.checkpoint.families import kind_of
from vllm_eagle_ext.checkpoint.rules.pairing import wanted_runner
from vllm_eagle_ext.options import KEY, Options, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    draft: str
    target: str
    k: int | None = None
    method: str | None = None
    max_model_len: int | None = None
    revision: str | None = None
    token: str | None = None
    download_dir: str | None = None
    options: Mapping[str, Any]  # as in additional_config.eagle_ext


@dataclass(frozen=True, slots=True)
class CheckResult:
    request: CheckRequest
    target: TargetFacts
    inspection: Inspection
    method: str

    @property
    def exit_code(self) -> int:
        return 1 if self.inspection.errors else 0


def run_check(request: CheckRequest) -> CheckResult:
    """Raises:
    EagleExtError: draft, target or options cannot be read.
    """
    options = parse_options({KEY: dict(request.options)})
    target_folder = Path(os.path.expanduser(request.target))
    target = TargetFacts.from_config(
        read_config(request.target, token=request.token, download_dir=request.download_dir),
        target_folder if target_folder.is_dir() else None,
    )
    files = read_draft_files(
        request.draft,
        revision=request.revision,
        token=request.token,
        download_dir=request.download_dir,
    )
    inspection = _inspect(request, options, target, files)
    kind = kind_of(files.config, None)
    natural = inspection.spec.method if inspection.spec else kind.method if kind else "eagle3"
    return CheckResult(request, target, inspection, request.method or natural)


def _inspect(request: CheckRequest, options: Options, target: TargetFacts, files: Any) -> Inspection:
    setting = Setting(
        method=request.method,
        k=request.k,
        max_model_len=request.max_model_len or target.max_position_embeddings,
    )
    return inspect_draft(
        files,
        target,
        setting,
        aux_layers=options.aux_layers,
        norm_output=options.norm_output,
        gate_layout=options.gate_layout,
        strict=options.strict,
    )


def serve_command(result: CheckResult) -> str:
    """The line to paste; K defaults to what the draft was trained for, or 3.

    Where only one of vLLM's model runners can draft with it, the line says so.
    """
    request, spec = result.request, result.inspection.spec
    draft = json.dumps(speculative_config(result))
    words = ["vllm", "serve", request.target, "--speculative-config", draft]
    if request.max_model_len:
        words += ["--max-model-len", str(request.max_model_len)]
    if request.download_dir:
        words += ["--download-dir", request.download_dir]
    if request.options:
        words += ["--additional-config", json.dumps({KEY: dict(request.options)})]
    runner = wanted_runner(spec) if spec else None
    forced = f"VLLM_USE_V2_MODEL_RUNNER={int(runner[0] == 'v2')} " if runner else ""
    return forced + shlex.join(words)


def speculative_config(result: CheckResult) -> dict[str, Any]:
    """What the draft is served with."""
    request, spec = result.request, result.inspection.spec
    found: dict[str, Any] = {"method": result.method, "model": request.draft}
    found["num_speculative_tokens"] = request.k or usual_k(spec)
    if request.revision:
        found["revision"] = request.revision
    if spec and spec.family == "p-eagle":
        found["parallel_drafting"] = True
    return found


def usual_k(spec: DraftSpec | None) -> int:
    if spec is None:
        return 3
    most = spec.block_size - 1 if spec.block_size else None
    usual = spec.trained_k or most or 3
    return min(usual, most) if most else usual


def to_json(result: CheckResult) -> str:
    """Valid JSON whatever the config held: values that JSON has no word for become text."""
    return json.dumps(_plain(as_json(result)), indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    is_plain = value is None or isinstance(value, bool | int | str)
    return value if is_plain or (isinstance(value, float) and isfinite(value)) else str(value)


def as_json(result: CheckResult) -> dict[str, Any]:
    """Plain JSON: `spec` is null for a draft that is left to vLLM or cannot be made out."""
    inspection = result.inspection
    return {
        "draft": result.request.draft,
        "target": result.request.target,
        "spec": asdict(inspection.spec) if inspection.spec else None,
        "left_to_vllm": inspection.is_left_to_vllm,
        "findings": [
            {"rule": f.rule, "severity": f.severity, "can_run": f.can_run, **asdict(f.problem)}
            for f in inspection.findings
        ],
        "command": serve_command(result) if inspection.spec and not result.exit_code else None,
        "exit_code": result.exit_code,
    }
