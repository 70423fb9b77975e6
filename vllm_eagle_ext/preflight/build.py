# SPDX-License-Identifier: Apache-2.0
"""Runs the rules around vLLM's own builder of SpeculativeConfig, and refuses or applies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext import compat, failed_start, metrics
from vllm_eagle_ext.checkpoint import Inspection, TargetFacts, inspect_draft, read_draft_files
from vllm_eagle_ext.checkpoint.case import Setting
from vllm_eagle_ext.checkpoint.draft_files import read_config
from vllm_eagle_ext.checkpoint.families.registry import (
    drafter_of,
    method_drafts_in_parallel,
    methods,
    own_model_types,
)
from vllm_eagle_ext.checkpoint.known_architectures import PLAIN_MODELS
from vllm_eagle_ext.checkpoint.rope_config import read_rope
from vllm_eagle_ext.errors import EagleExtError, UnsupportedVllmError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_scheme import refuse_without_states
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.preflight.apply import apply_spec
from vllm_eagle_ext.preflight.apply_scheme import apply_hybrid_state, require_drafts
from vllm_eagle_ext.preflight.capture import check_capture
from vllm_eagle_ext.preflight.draft_request import DraftRequest, check_request, read_request
from vllm_eagle_ext.preflight.messages import log_inspection, raise_errors
from vllm_eagle_ext.preflight.multimodal import check_multimodal
from vllm_eagle_ext.preflight.parallel import check_pipeline, check_ranks
from vllm_eagle_ext.preflight.untested import refuse_gaps

logger = get_logger(__name__)

# Methods that vLLM takes, or falls back to, for drafts whose method was not named.
_MISTAKABLE = (None, "draft_model", "eagle")


def build_speculative_config(
    engine_args: Any, target_model_config: Any, build: Callable[[], Any]
) -> Any:
    """Check the draft, let vLLM build its SpeculativeConfig, then write our decisions into it.

    Args:
        engine_args: vLLM's EngineArgs.
        target_model_config: ModelConfig of the target.
        build: vLLM's own builder, without arguments.

    Returns:
        What `build` returned; only drafts of a registered family are touched.

    Raises:
        EagleExtError: options, request or checkpoint that cannot be served rightly.
    """
    options = parse_options(engine_args.additional_config)
    metrics.withdraw()
    if not options.enabled:
        return build()
    refuse_without_states(target_model_config.architecture, options.hybrid_state)
    config = _with_checked_draft(engine_args, target_model_config, build, options)
    if config is not None:
        apply_hybrid_state(engine_args, target_model_config, config, options)
    else:
        require_drafts(options)
    return config


def _with_checked_draft(
    engine_args: Any, target_model_config: Any, build: Callable[[], Any], options: Options
) -> Any:
    request = read_request(engine_args)
    if request is None:
        return build()
    failed_start.watch()
    # Before `build`, so that our message comes before the host's own errors.
    inspection = _inspect_for_start(request, target_model_config, engine_args, options)
    config = build()
    if config is None:
        return None
    if request.method is None and isinstance(config.model, str):
        # vLLM took the method from words in the draft's path.
        named = replace(request, method=config.method)
        inspection = _inspect_for_start(named, target_model_config, engine_args, options)
    if inspection is None or config.method not in methods():
        return config
    if inspection.case is None:
        logger.warning(
            "Draft %r is of a kind that is not checked: vLLM serves it as it reads it.", config.model
        )
    else:
        apply_spec(config, inspection.case, strict=options.strict)
        log_inspection(inspection, target_model_config.get_total_num_hidden_layers())
        spec, k = inspection.case.spec, config.num_speculative_tokens
        metrics.publish_draft(engine_args, target_model_config, spec, k)
    return config


def build_on_untested_vllm(engine_args: Any, target_model_config: Any, build: Callable[[], Any]) -> Any:
    """Outside the tested range: stock behaviour, but a draft that needs us is refused.

    Whatever else goes wrong here is logged and left to vLLM: nothing is known of this release.

    Raises:
        OptionsError: an unknown option or value.
        UnsupportedVllmError: a draft that vLLM alone would serve wrongly.
    """
    options = parse_options(getattr(engine_args, "additional_config", None))
    if options.untested_vllm and options.enabled:
        return build_speculative_config(engine_args, target_model_config, build)
    if options.enabled:
        try:
            _refuse_if_needed(engine_args, target_model_config)
        except UnsupportedVllmError:
            raise
        except Exception as error:  # noqa: BLE001
            logger.warning("The draft could not be checked on this vLLM: %s", error)
        if options.hybrid_state == "replay":
            logger.warning("hybrid_state: states are kept in slots on this untested vLLM.")
    return build()


def _inspect(
    request: DraftRequest, target_model_config: Any, engine_args: Any, options: Options
) -> Inspection | None:
    """None for drafts that are not looked at: another method, or another kind of storage."""
    if request.method not in methods() and not _may_be_mistaken(request, engine_args):
        return None
    if request.method in methods():
        check_request(request)
    if "://" in request.model or os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        logger.warning(
            "Draft %r lies neither in a folder nor on the hub: it is not checked, and served as vLLM "
            "reads it.",
            request.model,
        )
        return None
    files = read_draft_files(
        request.model,
        revision=request.revision,
        token=engine_args.hf_token,
        download_dir=engine_args.download_dir,
    )
    if hook := own_model_types().get(str(files.config.get("model_type"))):
        resolve_name(hook)()
    inspection = inspect_draft(
        files,
        target_facts(target_model_config),
        _setting(request, target_model_config),
        aux_layers=options.aux_layers,
        norm_output=options.norm_output,
        gate_layout=options.gate_layout,
        strict=options.strict,
    )
    raise_errors(inspection, request.model)
    return inspection


def _inspect_for_start(
    request: DraftRequest, target_model_config: Any, engine_args: Any, options: Options
) -> Inspection | None:
    """And what of the engine around it does not go with a valid draft of ours."""
    inspection = _inspect(request, target_model_config, engine_args, options)
    case = inspection.case if inspection else None
    if case is not None and request.method in methods():
        runner = case.setting.runner or "v1"
        check_pipeline(engine_args, case.spec, runner)
        check_ranks(
            engine_args.tensor_parallel_size,
            target_model_config.hf_text_config.to_dict(),
            case,
            request.draft_tensor_parallel_size,
        )
        check_multimodal(target_model_config, runner)
        check_capture(engine_args, target_model_config, case, strict=options.strict)
    return inspection


def _may_be_mistaken(request: DraftRequest, engine_args: Any) -> bool:
    """A draft of ours under a method that would run it as something else. Reads config.json alone."""
    if request.method not in _MISTAKABLE or not isinstance(request.model, str):
        return False
    if request.model in ("ngram", "[ngram]"):
        return False
    try:
        config = read_config(
            request.model,
            revision=request.revision,
            token=engine_args.hf_token,
            download_dir=engine_args.download_dir,
        )
    except EagleExtError:
        return False  # whatever it is, vLLM has its own word on it
    is_plain = config.get("architectures") in [[name] for name in PLAIN_MODELS]
    return drafter_of(config, None) is not None and not is_plain


def target_facts(target_model_config: Any) -> TargetFacts:
    text = target_model_config.hf_text_config.to_dict()
    folder = Path(target_model_config.model)
    return TargetFacts(
        num_layers=target_model_config.get_total_num_hidden_layers(),
        hidden_size=target_model_config.get_hidden_size(),
        vocab_size=target_model_config.get_vocab_size(),
        rope=read_rope(text),
        max_position_embeddings=text.get("max_position_embeddings"),
        folder=folder if folder.is_dir() else None,
    )


def _setting(request: DraftRequest, target_model_config: Any) -> Setting:
    k = request.num_speculative_tokens
    parallel = request.parallel_drafting or method_drafts_in_parallel(request.method)
    return Setting(
        method=request.method,
        k=k if isinstance(k, int) else None,
        max_model_len=target_model_config.max_model_len,
        runner=compat.model_runner(drafts_in_parallel=request.parallel_drafting),
        v2_runner_needs_aux_states=compat.v2_runner_needs_aux_states(),
        parallel_drafting=parallel,
        registered=compat.registered_architectures(),
        model_types=compat.readable_model_types(),
    )


def _refuse_if_needed(engine_args: Any, target_model_config: Any) -> None:
    request = read_request(engine_args)
    if request is None:
        return
    inspection = _inspect(request, target_model_config, engine_args, Options())
    if inspection and inspection.case:
        refuse_gaps(inspection.case, compat.vllm_version())
