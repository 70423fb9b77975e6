# SPDX-License-Identifier: Apache-2.0
"""Inspects the draft of a start, and refuses what of the engine around it does not go with the draft."""

from __future__ import annotations

import logging
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext.checkpoint import (
    Case,
    DraftFiles,
    Inspection,
    Setting,
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.checkpoint.families.registry import (
    drafter_of,
    method_may_lie_in_the_target,
    methods,
    own_model_types,
)
from vllm_eagle_ext.checkpoint.gguf import plugin_is_active
from vllm_eagle_ext.checkpoint.known_architectures import PLAIN_MODELS
from vllm_eagle_ext.errors import EagleExtError, GgufDraftError, SpeculativeConfigError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.preflight.capture import refuse_embeddings
from vllm_eagle_ext.preflight.cpu_kernels import BF16_FALLBACK, LoadedKernels, refuse_missing_kernels
from vllm_eagle_ext.preflight.draft_request import DraftRequest, check_request, speculative_keys
from vllm_eagle_ext.preflight.kv_groups import check_kv_groups
from vllm_eagle_ext.preflight.launch import Launch, draft_setting, target_facts
from vllm_eagle_ext.preflight.messages import raise_errors
from vllm_eagle_ext.preflight.multimodal import check_multimodal
from vllm_eagle_ext.preflight.online_quantisation import check_online_quantisation
from vllm_eagle_ext.preflight.other_texts import warn_of_other_texts
from vllm_eagle_ext.preflight.parallel import check_pipeline, check_ranks

logger = get_logger(__name__)

# Methods that vLLM takes, or falls back to, for drafts whose method was not named.
_MISTAKABLE = (None, "draft_model", "eagle")


def inspect_launch(launch: Launch) -> Launch:
    """Inspect the draft, and hold a supported one against the engine that is to serve it.

    Raises:
        EagleExtError: the request, the checkpoint or the engine cannot be served rightly.
    """
    request = launch.request
    if request is None:
        return launch
    launch = replace(launch, inspection=inspect_requested(launch, request))
    if launch.case is not None and request.method in methods():
        _check_engine(launch, request, launch.case)
    return launch


def inspect_requested(launch: Launch, request: DraftRequest) -> Inspection | None:
    """Apply the rules to the draft's files.

    Returns:
        None for drafts that are not looked at: those of another method, or in another kind of storage.

    Raises:
        EagleExtError: the request or the checkpoint cannot be served rightly.
    """
    if request.method not in methods() and not _may_be_mistaken(launch, request):
        return None
    if method_may_lie_in_the_target(request.method) and request.model in (None, launch.target.model):
        return None
    if request.method in methods():
        check_request(request)
    if "://" in request.model:
        logger.warning(
            "Draft %r lies neither in a folder nor on the hub: not checked; plain vLLM loads it.",
            request.model,
        )
        return None
    try:
        files = read_draft_files(request.model, **_place(launch, request))
    except GgufDraftError:
        if not plugin_is_active():
            raise
        logger.warning("Draft %r is a GGUF: not checked; left to vllm-gguf-plugin.", request.model)
        return None
    if hook := own_model_types().get(str(files.config.get("model_type"))):
        resolve_name(hook)()
    setting = draft_setting(launch, request)
    inspection = inspect_files(files, target_facts(launch), setting, launch.options)
    raise_errors(inspection, request.model)
    return inspection


def inspect_files(
    files: DraftFiles, target: TargetFacts, setting: Setting, options: Options
) -> Inspection:
    """Apply the rules as the options say, for a start and for `vllm-eagle check` alike."""
    return inspect_draft(
        files,
        target,
        setting,
        aux_layers=options.aux_layers,
        norm_output=options.norm_output,
        gate_layout=options.gate_layout,
        draft_window=options.draft_window,
        strict=options.strict,
    )


def _check_engine(launch: Launch, request: DraftRequest, case: Case) -> None:
    engine_args, runner = launch.engine_args, case.setting.runner or "v1"
    check_pipeline(engine_args.pipeline_parallel_size, case.spec, runner)
    check_ranks(
        engine_args.tensor_parallel_size, launch.target_text, case,
        speculative_keys(engine_args.speculative_config or {}).get("draft_tensor_parallel_size"),
    )  # fmt: skip
    on_cpu = _is_on_cpu()
    check_online_quantisation(request.quantization, case.spec, on_cpu=on_cpu)
    if on_cpu:
        _check_cpu(launch, case)
    warn_of_other_texts(request.rejection_sample_method)
    check_multimodal(launch.target, runner)
    refuse_embeddings(launch.target.architecture, case.spec)
    check_kv_groups(launch, case)
    _refuse_late_weights(launch, case)


def _refuse_late_weights(launch: Launch, case: Case) -> None:
    """Refuse dummy weights for a draft with embeddings or a head of its own, served by a class of
    vLLM's. Such a class learns from the load what a draft has, and shares the target's modules
    otherwise. An update would bring the draft's embeddings and head into the target."""
    given = speculative_keys(launch.engine_args.speculative_config).get("draft_load_config")
    load = given or launch.engine_args
    load_format = (
        load.get("load_format") if isinstance(load, dict) else getattr(load, "load_format", None)
    )
    own = [n for n in case.files.tensors if n.startswith(("embed_tokens.", "lm_head."))]
    if load_format == "dummy" and own and case.spec.served_by.is_vllms:
        raise SpeculativeConfigError(
            field="load_format of the draft",
            value=load_format,
            allowed=f"a format that loads the draft's files, because {', '.join(own)} would take the "
            "target's place later",
            remedy='set "draft_load_config": {"load_format": "auto"} in speculative_config',
        )


def _check_cpu(launch: Launch, case: Case) -> None:
    kernels = LoadedKernels()
    refuse_missing_kernels(case, kernels)
    if str(launch.target.dtype) == "torch.bfloat16" and not kernels.bf16:
        log_once(logger, logging.WARNING, BF16_FALLBACK)


def _is_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _may_be_mistaken(launch: Launch, request: DraftRequest) -> bool:
    """Find out whether a supported draft is named under a method that would run it as something else.

    Reads only config.json.
    """
    if request.method not in _MISTAKABLE or not isinstance(request.model, str):
        return False
    if request.model in ("ngram", "[ngram]"):
        return False
    try:
        config = read_config(request.model, **_place(launch, request))
    except EagleExtError:
        return False  # whatever it is, vLLM has its own word on it
    is_plain = config.get("architectures") in [[name] for name in PLAIN_MODELS]
    return drafter_of(config, None) is not None and not is_plain


def _place(launch: Launch, request: DraftRequest) -> dict[str, Any]:
    """Say where the draft's files are looked for, as keywords of the functions that read them."""
    return {
        "revision": request.revision,
        "token": launch.engine_args.hf_token,
        "download_dir": launch.engine_args.download_dir,
    }
