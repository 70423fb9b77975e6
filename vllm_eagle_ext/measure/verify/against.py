# SPDX-License-Identifier: Apache-2.0
"""Loads target and draft a second time, as plain torch, and drafts with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_eagle_ext.draft.sources import (
    find_modelscopes_snapshot,
    open_source,
    takes_modelscopes_names,
)
from vllm_eagle_ext.measure.engine.load import Measured
from vllm_eagle_ext.measure.verify import acceptance
from vllm_eagle_ext.measure.verify.request import OVERRIDES, VerifyRequest
from vllm_eagle_ext.measure.verify.verdicts import Check, not_applicable
from vllm_eagle_ext.plan.request import GIB
from vllm_eagle_ext.start.check import CheckResult, run_check

if TYPE_CHECKING:
    from vllm_eagle_ext.draft import DraftSpec

LARGEST_GIB = 8  # of the target's files: in float32 they take twice that
# Keywords of LLM() by which an engine reads or computes another target than plain transformers.
_OTHER_TARGET = (
    "code_revision", "hf_overrides", "hf_config_path", "config_format", "load_format",
    "quantization", "quantization_config", "kv_cache_dtype", "trust_remote_code", "model_impl",
)  # fmt: skip
_PLAIN: tuple[object, ...] = (None, False, "", {}, "auto", "safetensors")
_NOT_OF_TEXT = {"image_token_index"}  # keys of hf_overrides: how vLLM's V1 runner finds images


def check_reference(
    request: VerifyRequest,
    checked: CheckResult,
    greedy: Measured,
    stage: Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]],
) -> Check:
    try:
        kept = {name: value for name, value in request.options.items() if name not in OVERRIDES}
        spec = run_check(replace(request.check, options=kept)).inspection.spec
        reason = _unsupported_reason(request, spec) or acceptance.undrafted(greedy)
        if reason or spec is None:
            return not_applicable(acceptance.REFERENCE, reason or "the draft is passed through to vLLM")
        with stage("Drafting with the reference", None):
            return _compare(request, spec, greedy)
    except Exception as error:  # noqa: BLE001 (what the engines found must not be lost with it)
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return not_applicable(acceptance.REFERENCE, f"the reference cannot be computed ({said})")


def _unsupported_reason(request: VerifyRequest, spec: DraftSpec | None) -> str | None:
    if request.reference is False:
        return "left out by --no-reference"
    if spec is None:
        return "the draft is passed through to vLLM, or not what it says without the options"
    values = {name: request.engine.get(name) for name in _OTHER_TARGET}
    if isinstance(values["hf_overrides"], Mapping) and _NOT_OF_TEXT.issuperset(values["hf_overrides"]):
        del values["hf_overrides"]
    if other := [name for name, value in values.items() if value not in _PLAIN]:
        return f"the reference reads the target without {', '.join(other)} of --engine"
    target = open_source(
        request.target, revision=request.check.target_revision, token=None,
        download_dir=request.check.download_dir, field="--target",
    )  # fmt: skip
    size = weight_file_bytes(target.files()) / GIB
    if request.reference is None and size > LARGEST_GIB:
        return (
            f"the target's weights are {size:.1f} GiB, and more than {LARGEST_GIB} take long in "
            "float32; ask for it with --reference"
        )
    from vllm_eagle_ext.measure.reference.published import unsupported_reason

    return unsupported_reason(spec, _draft(request))


def weight_file_bytes(files: Mapping[str, int]) -> int:
    """Sum the bytes of weight files, given as name -> size.

    Of copies in several formats those count that transformers reads.
    """
    kept = {name: size for name, size in files.items() if "consolidated" not in name}
    safetensors, bins = (
        sum(size for name, size in kept.items() if name.endswith(ending))
        for ending in (".safetensors", ".bin")
    )
    return safetensors or bins


def _compare(request: VerifyRequest, spec: DraftSpec, greedy: Measured) -> Check:
    from transformers.utils import logging

    from vllm_eagle_ext.measure.reference.published import NotComputedError, load_reference, load_target

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    check = request.check
    target = load_target(_local(request.target, check.target_revision, check.download_dir))
    try:
        reference = load_reference(spec, _draft(request), target)
    except NotComputedError as error:
        return not_applicable(acceptance.REFERENCE, str(error))
    layer_ids = spec.aux_layers.layer_ids
    prompts, answers = request.prompts.ids, greedy.answers
    paired = acceptance.compare(reference, target, layer_ids, prompts, answers, request.k)
    return acceptance.judge_reference(paired, request.overrides())


def _draft(request: VerifyRequest) -> Path:
    return _local(request.check.draft, request.check.revision, request.check.download_dir)


def _local(model: str, revision: str | None, download_dir: str | None) -> Path:
    """Find a model's folder; in the hub's cache, where an engine has just read it."""
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        return folder
    if takes_modelscopes_names():
        return find_modelscopes_snapshot(model, revision, download_dir)
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
    )
