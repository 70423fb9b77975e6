# SPDX-License-Identifier: Apache-2.0
"""Checks a draft: reads it and its target, applies the rules, and those of the start around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_eagle_ext.checkpoint import (
    DraftFiles,
    Inspection,
    Setting,
    TargetFacts,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.checkpoint.draft_files import OnValues, refuse_disguised
from vllm_eagle_ext.checkpoint.families.registry import drafter_of
from vllm_eagle_ext.checkpoint.findings import relax
from vllm_eagle_ext.checkpoint.sources import FolderSource
from vllm_eagle_ext.checkpoint.target_facts import refuse_a_draft
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.options import KEY, parse_options
from vllm_eagle_ext.preflight.draft_checks import inspect_files
from vllm_eagle_ext.preflight.draft_request import speculative_keys
from vllm_eagle_ext.preflight.offline.platform import find_platform
from vllm_eagle_ext.preflight.offline.serve import usual_k
from vllm_eagle_ext.preflight.offline.start import Start, plan_start
from vllm_eagle_ext.preflight.offline.wishes import EngineWishes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Says what is to be checked, and for which engine."""

    draft: str
    draft_field: str = "DRAFT"  # what an error calls it
    target: str
    k: int | None = None
    method: str | None = None
    max_model_len: int | None = None
    revision: str | None = None
    token: str | None = None
    download_dir: str | None = None
    options: Mapping[str, Any]  # as in additional_config.eagle_ext
    platform: str = "auto"
    tp: int = 1
    prefix_caching: bool | None = None  # None: vLLM's default
    subfolders: bool = False  # read a folder of a repository, which vLLM does not take
    speculative: Mapping[str, Any] = field(default_factory=dict)  # further keys of speculative_config
    engine: Mapping[str, Any] = field(default_factory=dict)  # further keywords of LLM()

    @classmethod
    def for_engine(cls, engine: Mapping[str, Any], **asked: Any) -> CheckRequest:
        """Make the request of a check for an engine that is to be started.

        Args:
            engine: keywords of LLM().
            asked: the other fields.

        Raises:
            SpeculativeConfigError: a tensor_parallel_size that is no number of ranks.
        """
        return cls(
            max_model_len=engine.get("max_model_len"), download_dir=engine.get("download_dir"),
            tp=_ranks(engine), prefix_caching=engine.get("enable_prefix_caching"), engine=engine,
            **asked,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Holds what a check found."""

    request: CheckRequest
    target: TargetFacts
    inspection: Inspection
    method: str
    files: DraftFiles
    start: Start

    @property
    def exit_code(self) -> int:
        return 1 if self.inspection.errors else 0


def _ranks(engine: Mapping[str, Any]) -> int:
    ranks = engine.get("tensor_parallel_size", 1)
    if type(ranks) is not int or ranks < 1:
        raise SpeculativeConfigError(
            field="--engine: tensor_parallel_size", value=ranks, allowed="a whole number above 0",
            remedy="give the number of devices, or leave it out for one",
        )  # fmt: skip
    return ranks


def run_check(request: CheckRequest, on_values: OnValues | None = None) -> CheckResult:
    """Check a draft and its target by the rules of a start.

    Args:
        on_values: is called with bytes read and their total; with it every tensor's values are read.

    Raises:
        EagleExtError: draft, target or options cannot be read.
    """
    options = parse_options({KEY: request.options})
    platform = find_platform(request.platform)
    target_folder = Path(os.path.expanduser(request.target))
    config = read_config(request.target, token=request.token, download_dir=request.download_dir)
    refuse_a_draft(config, request.target)
    target = TargetFacts.from_config(config, target_folder if target_folder.is_dir() else None)
    if target_folder.is_dir():
        _look_at_weights(request.target, target_folder)
    files = _read_draft(request, on_values)
    inspection = Inspection(None, ())
    if options.enabled:
        inspection = inspect_files(files, target, _setting(request, platform.name), options)
    spec = inspection.spec
    wishes = EngineWishes(
        k=request.k or usual_k(spec), tp=request.tp, prefix_caching=request.prefix_caching,
        options=options, max_model_len=request.max_model_len,
        speculative=speculative_keys(request.speculative), engine=request.engine,
    )  # fmt: skip
    start = plan_start(config, inspection.case, wishes, platform)
    refusals = start.refusals if options.strict else tuple(relax(start.refusals))
    inspection = replace(inspection, findings=(*inspection.findings, *refusals))
    drafter = drafter_of(files.config, None)
    natural = spec.method if spec else drafter.method if drafter else "eagle3"
    return CheckResult(request, target, inspection, request.method or natural, files, start)


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


def _setting(request: CheckRequest, platform: str) -> Setting:
    return Setting(
        method=request.method,
        k=request.k,
        max_model_len=request.max_model_len,
        runner="v1" if platform == "cpu" else None,
    )
