# SPDX-License-Identifier: Apache-2.0
"""Checks a draft by its files: reads it and its target, and applies the rules of drafts.

What vLLM makes of the whole command is for a dry start (`dry.py`), or for the engine that follows.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from vllm_eagle_ext.draft import (
    DraftFiles,
    DraftSpec,
    Inspection,
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.draft.draft_config import published_architecture
from vllm_eagle_ext.draft.draft_files import refuse_disguised
from vllm_eagle_ext.draft.registry import drafter_of, method_fills_a_block, refuse_a_draft
from vllm_eagle_ext.draft.rules.request import MOST_K, wanted_runner
from vllm_eagle_ext.draft.rules.tensors import tensors_are_expected
from vllm_eagle_ext.draft.sources import FolderSource
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.draft.target_facts import read_named_target, text_config
from vllm_eagle_ext.errors import OptionsError, SpeculativeConfigError
from vllm_eagle_ext.memory.device import NEWEST_RELEASE, OLDEST_RELEASE
from vllm_eagle_ext.memory.state_scheme import planned_prefix_caching
from vllm_eagle_ext.options import KEY, parse_options
from vllm_eagle_ext.start.ask import speculative_keys
from vllm_eagle_ext.start.described import DEVICES
from vllm_eagle_ext.version import how_tested, installed_vllm, is_from

PLATFORMS = ("auto", "cpu", "cuda", *(f"cuda:{name}" for name in DEVICES))
_BUILDS = ("cpu", "rocm", "xpu", "tpu")  # in the local part of a version; CUDA's has a number or none


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Names a draft and a target, and holds what a user says of the engine in vLLM's own words."""

    draft: str
    target: str | None  # None: as the draft names it
    k: int | None = None
    method: str | None = None
    revision: str | None = None
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
    """Holds what a check of the files found."""

    request: CheckRequest
    target_name: str
    target_config: Mapping[str, Any]
    target: TargetFacts
    inspection: Inspection
    method: str
    files: DraftFiles
    draft_request: DraftRequest  # with the runner and K that the command decides
    platform: str
    platform_why: str
    prefix_caching: bool | None  # that the command asks for; None: vLLM's default

    @property
    def exit_code(self) -> int:
        return 1 if self.inspection.errors else 0

    @property
    def architecture(self) -> str:
        """Return the target's."""
        return published_architecture(self.target_config)

    @property
    def text(self) -> Mapping[str, Any]:
        """Return the config of the target's language model."""
        return text_config(self.target_config)

    @property
    def tensor_parallel_size(self) -> int:
        return int(self.request.engine.get("tensor_parallel_size") or 1)


def run_check(request: CheckRequest, *, all_values: bool = False) -> CheckResult:
    """Check a draft and its target by their files.

    Args:
        all_values: read every tensor's values, of a draft that has none but its family's: a header may
            claim a terabyte.

    Raises:
        EagleExtError: draft, target or options cannot be read.
    """
    if all_values:
        checked = run_check(request)
        rules = {finding.rule for finding in checked.inspection.findings}
        if checked.exit_code or not checked.inspection.case or tensors_are_expected.name in rules:
            return checked
    # What is asked.
    options = parse_options({KEY: request.options})
    _refuse_no_counts(request.engine)
    request = _with_speculative(request)
    platform, why, before_033 = _platform(request)
    draft_request = DraftRequest(
        options=options, method=request.method, k=request.k,
        max_model_len=request.engine.get("max_model_len"),
        runner="v1" if platform == "cpu" else None,  # V2 needs Triton
        before_033=before_033,
    )  # fmt: skip
    # The target, then the draft.
    directory = request.download_dir
    name = request.target or read_named_target(
        request.draft, revision=request.revision, download_dir=directory
    )
    config = read_config(name, revision=request.target_revision, download_dir=directory)
    refuse_a_draft(config, name)
    folder = Path(os.path.expanduser(name))
    target = TargetFacts.from_config(config, folder if folder.is_dir() else None)
    weights = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    # Links are the hub's cache, of whole files.
    refuse_disguised(
        FolderSource(name, folder), [path.name for path in weights if not path.is_symlink()]
    )
    files = read_draft_files(
        request.draft, revision=request.revision, field="DRAFT", download_dir=directory,
        subfolders=request.subfolders, all_values=all_values,
    )  # fmt: skip
    inspection = inspect_draft(files, target, draft_request) if options.enabled else Inspection(None, ())
    # What the command decides.
    draft_request = _decided(draft_request, inspection, request)
    if inspection.case is not None:
        inspection = replace(inspection, case=replace(inspection.case, request=draft_request))
    drafter, spec = drafter_of(files.config, None), inspection.spec
    natural = spec.family.method if spec else drafter.method if drafter else "eagle3"
    caching = request.engine.get("enable_prefix_caching")
    return CheckResult(
        request, name, config, target, inspection, request.method or natural, files, draft_request,
        platform, why,
        planned_prefix_caching(published_architecture(config), platform, caching),
    )  # fmt: skip


def _platform(request: CheckRequest) -> tuple[str, str, bool]:
    """Return the platform, why it is assumed, and whether vLLM is older than 0.33, or not known."""
    platform, why = find_platform(request.platform)
    release = None if request.release is None else read_release(request.release)
    if release is not None:
        why = f"{why}; for vLLM {release} ({how_tested(release)})"
    is_known = release is not None or (request.platform == "auto" and installed_vllm() is not None)
    serving = release or installed_vllm() or NEWEST_RELEASE
    return platform, why, not (is_known and is_from(serving, "0.33"))


def _decided(draft_request: DraftRequest, inspection: Inspection, request: CheckRequest) -> DraftRequest:
    """Add the runner and K that the command takes for a draft."""
    spec = inspection.spec
    wanted = wanted_runner(spec, before_033=draft_request.before_033) if spec else None
    method = spec.family.method if spec else draft_request.method
    is_asked = speculative_keys(request.speculative).get("parallel_drafting") is True
    return replace(
        draft_request, method=method, k=draft_request.k or usual_k(spec),
        runner=draft_request.runner or (wanted[0] if wanted else "v2"),
        parallel_drafting=is_asked or method_fills_a_block(method)
        or bool(spec and spec.family.drafts_in_parallel),
    )  # fmt: skip


def _with_speculative(request: CheckRequest) -> CheckRequest:
    """Take K and the method from the speculative keys, where no option names them."""
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


def _refuse_no_counts(engine: Mapping[str, Any]) -> None:
    for name, unit in (("tensor_parallel_size", "devices"), ("pipeline_parallel_size", "stages")):
        count = engine.get(name, 1)
        if type(count) is not int or count < 1:
            raise SpeculativeConfigError(
                field=f"--engine: {name}", value=count, allowed="a whole number above 0",
                remedy=f"give the number of {unit}, or leave it out for one",
            )  # fmt: skip


def usual_k(spec: DraftSpec | None) -> int:
    """Return the K that a draft was trained for, or 3."""
    if spec is None:
        return 3
    most = spec.most_drafted
    # A file that states more than any training unrolls is not followed.
    trained = spec.trained_k if (spec.trained_k or 0) <= MOST_K else None
    usual = trained or most or 3
    return min(usual, most) if most else usual


def find_platform(name: str) -> tuple[str, str]:
    """Find the platform that a check is for, and why it is assumed.

    Args:
        name: one of PLATFORMS.

    Raises:
        SpeculativeConfigError: another word.
    """
    if name not in PLATFORMS:
        raise SpeculativeConfigError(
            field="--platform", value=name, allowed=", ".join(PLATFORMS),
            remedy="leave it out for the platform of the vLLM that is installed",
        )  # fmt: skip
    return _installed() if name == "auto" else (name.partition(":")[0], "as --platform says")


def _installed() -> tuple[str, str]:
    release = installed_vllm()
    if release is None:
        has_gpu = shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia/version")
        why = "and there is an NVIDIA GPU" if has_gpu else "a GPU is assumed"
        return "cuda", f"no vLLM is installed here, {why}"
    build = next((build for build in _BUILDS if build in release.partition("+")[2]), "cuda")
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        build = "cpu"
    return build, f"vLLM {release} is installed here ({how_tested(release)})"


def read_release(given: str) -> str:
    """Return a release that is given by --vllm.

    Raises:
        OptionsError: it is none, or older than those that are known.
    """
    try:
        release = Version(given)
        is_known = release >= Version(OLDEST_RELEASE)
    except ValueError:  # InvalidVersion is one, and what Python says of thousands of digits
        is_known = False
    if not is_known:
        raise OptionsError(
            field="--vllm", value=given, allowed=f"a release from {OLDEST_RELEASE} on, such as "
            f"{NEWEST_RELEASE}", remedy="leave it out for the release that is installed",
        )  # fmt: skip
    return release.public
