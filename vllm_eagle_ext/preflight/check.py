# SPDX-License-Identifier: Apache-2.0
"""Checks a draft: reads it and its target, and applies the rules of a start to a foreseen engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_eagle_ext.checkpoint import (
    Case,
    DraftFiles,
    Finding,
    Inspection,
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.checkpoint.draft_files import OnValues, read_json, refuse_disguised
from vllm_eagle_ext.checkpoint.findings import Severity, apply_rules, relax
from vllm_eagle_ext.checkpoint.registry import drafter_of
from vllm_eagle_ext.checkpoint.rules.tensors import tensors_are_expected
from vllm_eagle_ext.checkpoint.sources import FolderSource, open_source
from vllm_eagle_ext.checkpoint.target_facts import read_named_target, refuse_a_draft
from vllm_eagle_ext.engine import EngineFacts, speculative_keys
from vllm_eagle_ext.engine_rules import (
    ENGINE_RULES,
    OF_VLLM,
    OPTION_RULES,
    PAIR_RULES,
    SETTLED_PAIR_RULES,
    SETTLED_RULES,
    UNTESTED_RULES,
)
from vllm_eagle_ext.engine_rules.states import state_can_be_kept
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.memory.state_scheme import choose, planned_prefix_caching
from vllm_eagle_ext.options import KEY, parse_options
from vllm_eagle_ext.preflight.foreseen import foresee_engine, read_release, with_draft


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Names a draft and a target, and holds what a user says of the engine in vLLM's own words."""

    draft: str
    draft_field: str = "DRAFT"  # what an error calls it
    target: str | None  # None: as the draft names it
    k: int | None = None
    method: str | None = None
    revision: str | None = None
    token: str | None = None
    options: Mapping[str, Any]  # as in additional_config.eagle_ext
    platform: str = "auto"
    release: str | None = None  # of the vLLM that will serve; None: the one that is here
    subfolders: bool = False  # read a folder of a repository, which vLLM does not take
    speculative: Mapping[str, Any] = field(default_factory=dict)  # further keys of speculative_config
    engine: Mapping[str, Any] = field(default_factory=dict)  # keywords of LLM()

    @property
    def download_dir(self) -> str | None:
        return self.engine.get("download_dir")

    @property
    def target_revision(self) -> str | None:
        return self.engine.get("revision")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Holds what a check found."""

    request: CheckRequest
    target_name: str
    target: TargetFacts
    inspection: Inspection
    method: str
    files: DraftFiles
    engine: EngineFacts
    prefix_caching: bool | None  # that the command asks for; None: vLLM's default
    state: str | None = None  # how a hybrid target's recurrent states are kept
    of_files: tuple[Finding, ...] = ()  # what the draft's files tell

    @property
    def exit_code(self) -> int:
        return 1 if self.inspection.errors else 0


def run_check(request: CheckRequest, on_values: OnValues | None = None) -> CheckResult:
    """Check a draft and its target by the rules of a start.

    Args:
        on_values: is called with bytes read and their total; with it every tensor's values are read,
            of a draft that has none but its family's: a header may claim a terabyte.

    Raises:
        EagleExtError: draft, target or options cannot be read.
    """
    if on_values is not None:
        found = run_check(request)
        rules = {one.rule for one in found.inspection.findings}
        if found.exit_code or not found.inspection.case or tensors_are_expected.name in rules:
            return found
    options = parse_options({KEY: request.options})
    _refuse_no_counts(request.engine)
    request = _with_speculative(request)
    name, config = _read_target(request)
    engine = foresee_engine(
        config, platform=request.platform, options=options, k=request.k, method=request.method,
        speculative=speculative_keys(request.speculative), keywords=request.engine,
        release=None if request.release is None else read_release(request.release),
        default_min_p=_default_min_p(request, name),
    )  # fmt: skip
    refuse_a_draft(config, name)
    folder = Path(os.path.expanduser(name))
    target = TargetFacts.from_config(config, folder if folder.is_dir() else None)
    if folder.is_dir():
        _look_at_weights(name, folder)
    files = _read_draft(request, on_values)
    inspection = inspect_draft(files, target, engine) if options.enabled else Inspection(None, ())
    spec, case = inspection.spec, inspection.case
    engine = with_draft(engine, spec, request.engine)
    if case is not None:
        case = replace(case, engine=engine)
    around = _around(engine, case, is_refused=bool(inspection.errors))
    of_files = inspection.findings
    inspection = replace(inspection, findings=(*of_files, *around))
    drafter = drafter_of(files.config, None)
    natural = spec.family.method if spec else drafter.method if drafter else "eagle3"
    asked = request.engine.get("enable_prefix_caching")
    return CheckResult(
        request, name, target, inspection, request.method or natural, files, engine,
        planned_prefix_caching(engine.architecture, engine.platform, asked),
        _state(engine, around) if case is not None else None, of_files,
    )  # fmt: skip


def _read_target(request: CheckRequest) -> tuple[str, Mapping[str, Any]]:
    """Return the target's name, by the draft where none is given, and its config.json."""
    place: dict[str, Any] = {"token": request.token, "download_dir": request.download_dir}
    name = request.target or read_named_target(
        request.draft, field=request.draft_field, revision=request.revision, **place
    )
    return name, read_config(name, revision=request.target_revision, **place)


def _default_min_p(request: CheckRequest, name: str) -> object:
    """Return min_p of requests that name none. A file that cannot be read has none for vLLM, too."""
    asked = request.engine.get("override_generation_config")
    given = asked if isinstance(asked, Mapping) else {}
    source = request.engine.get("generation_config", "auto")
    if "min_p" in given or not isinstance(source, str) or source == "vllm":
        return given.get("min_p")
    model, revision = (name, request.target_revision) if source == "auto" else (source, None)
    try:
        place = open_source(
            model, revision=revision, token=request.token, download_dir=request.download_dir,
            field="generation_config",
        )  # fmt: skip
        return (read_json(place, place.files(), "generation_config.json") or {}).get("min_p")
    except UnsupportedDraftError:
        return None


def _with_speculative(request: CheckRequest) -> CheckRequest:
    """Take K and the method from the speculative keys, where no option names them.

    Raises:
        SpeculativeConfigError: the keys name another draft.
    """
    given = speculative_keys(request.speculative)
    k, method, model = (given.get(key) for key in ("num_speculative_tokens", "method", "model"))
    if model not in (None, request.draft):
        raise SpeculativeConfigError(
            field="speculative_config.model", value=model, allowed=f"the draft, {request.draft}",
            remedy="leave the key out, or name this draft in its place",
        )  # fmt: skip
    if request.k is None and type(k) is int and k > 0:
        request = replace(request, k=k)
    return replace(request, method=method) if request.method is None and type(method) is str else request


def _around(engine: EngineFacts, case: Case | None, *, is_refused: bool) -> list[Finding]:
    """Apply the rules of the engine around the draft, as a start does.

    A draft that was refused before it was understood has no K by which states are kept.
    """
    found = apply_rules(OF_VLLM, engine)
    if engine.options.enabled:
        found += apply_rules(ENGINE_RULES, engine)
        if case is not None:
            found += apply_rules((*PAIR_RULES, *UNTESTED_RULES, *SETTLED_PAIR_RULES), case)
        unknown, settled = case is None and is_refused, (*OPTION_RULES, *SETTLED_RULES)
        found += apply_rules(
            [one for one in settled if not (unknown and one is state_can_be_kept)], engine
        )
    return found if engine.options.strict else relax(found)


def _state(engine: EngineFacts, around: list[Finding]) -> str | None:
    refused = any(f.rule == "state_can_be_kept" and f.severity == Severity.ERROR for f in around)
    is_chosen = engine.architecture in REPLAYING_TARGETS and not refused
    return str(choose(engine)) if is_chosen else None


def _refuse_no_counts(engine: Mapping[str, Any]) -> None:
    for name, unit in (("tensor_parallel_size", "devices"), ("pipeline_parallel_size", "stages")):
        count = engine.get(name, 1)
        if type(count) is not int or count < 1:
            raise SpeculativeConfigError(
                field=f"--engine: {name}", value=count, allowed="a whole number above 0",
                remedy=f"give the number of {unit}, or leave it out for one",
            )  # fmt: skip


def _look_at_weights(target: str, folder: Path) -> None:
    """Refuse a target whose files are not what their names say.

    Raises:
        UnsupportedDraftError: something else lies in a file's place.
    """
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    # The hub's cache links to whole files.
    names = [path.name for path in found if not path.is_symlink()]
    refuse_disguised(FolderSource(target, folder), names)


def _read_draft(request: CheckRequest, on_values: OnValues | None) -> DraftFiles:
    return read_draft_files(
        request.draft,
        revision=request.revision,
        token=request.token,
        download_dir=request.download_dir,
        field=request.draft_field,
        subfolders=request.subfolders,
        on_values=on_values,
    )
