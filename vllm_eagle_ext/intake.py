# SPDX-License-Identifier: Apache-2.0
"""The intake: from `speculative_config` and a draft checkpoint to what vLLM's runners read.

Runs in the front end, between the command line and vLLM's SpeculativeConfig; the result travels to
every worker with the engine's config. Our refusal comes before any weight is loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.checkpoint import (
    DraftSpec,
    TargetFacts,
    read_draft_files,
    read_draft_spec,
)
from vllm_eagle_ext.checkpoint.files import eagle_config
from vllm_eagle_ext.checkpoint.spec import published_architecture
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedVllmError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.stamp import write_stamp

logger = get_logger(__name__)

METHOD = "eagle3"

# Published architecture -> the drafter that serves it. Anything else goes to vLLM as it is.
DRAFTER_OF = {
    "LlamaForCausalLMEagle3": "Eagle3EagleExtLlamaForCausalLM",
    "Eagle3LlamaForCausalLM": "Eagle3EagleExtLlamaForCausalLM",
    "LlamaForCausalLM": "Eagle3EagleExtLlamaForCausalLM",  # older EAGLE-3 heads
}


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What the user asked for, from `--speculative-config` or the `--spec-*` flags."""

    method: str | None
    model: Any  # a string, once checked
    num_speculative_tokens: Any
    revision: str | None


def build_speculative_config(
    engine_args: Any, target_model_config: Any, build: Callable[[], Any]
) -> Any:
    """Check the draft, let vLLM build its SpeculativeConfig, then write our decisions into it.

    Args:
        engine_args: vLLM's EngineArgs.
        target_model_config: ModelConfig of the target.
        build: vLLM's own builder, without arguments.

    Returns:
        What `build` returned; only drafts of DRAFTER_OF are touched.

    Raises:
        EagleExtError: options, request or checkpoint that cannot be served rightly.
    """
    options = parse_options(engine_args.additional_config)
    request = read_request(engine_args)
    if not options.enabled or request is None:
        return build()
    # Before `build`, so that our message comes before the host's own errors.
    spec = _inspect(request, target_model_config, engine_args, options)
    config = build()
    if config is None or config.method != METHOD:
        return config
    if request.method is None:  # vLLM took the method from words in the draft's path
        named = replace(request, method=METHOD)
        spec = _inspect(named, target_model_config, engine_args, options)
    if spec is not None:
        apply_spec(config, spec)
        _log_decision(spec, target_model_config)
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
    return build()


def read_request(engine_args: Any) -> DraftRequest | None:
    """None when no draft is asked for. Keys may be spelt with dashes, as vLLM allows."""
    given = engine_args.speculative_config or {}
    if not isinstance(given, Mapping):
        return None
    keys = {str(key).replace("-", "_"): value for key, value in given.items()}
    request = DraftRequest(
        method=keys.get("method") or getattr(engine_args, "spec_method", None),
        model=keys.get("model") or getattr(engine_args, "spec_model", None),
        num_speculative_tokens=keys.get(
            "num_speculative_tokens", getattr(engine_args, "spec_tokens", None)
        ),
        revision=keys.get("revision"),
    )
    return request if request.method or request.model else None


def _inspect(
    request: DraftRequest, target_model_config: Any, engine_args: Any, options: Options
) -> DraftSpec | None:
    """None for drafts that are not ours: another method, format or architecture."""
    if request.method != METHOD:
        return None
    _check_request(request)
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
    if not _is_ours(files.config):
        return None
    return read_draft_spec(
        files,
        TargetFacts(
            num_layers=target_model_config.get_total_num_hidden_layers(),
            hidden_size=target_model_config.get_hidden_size(),
            vocab_size=target_model_config.get_vocab_size(),
        ),
        aux_layers=options.aux_layers,
        norm_output=options.norm_output,
    )


def _check_request(request: DraftRequest) -> None:
    if not isinstance(request.model, str) or not request.model:
        raise SpeculativeConfigError(
            field="speculative_config.model",
            value=request.model,
            allowed="a folder or a repository of the hub",
            remedy="name the draft checkpoint",
        )
    k = request.num_speculative_tokens
    if isinstance(k, int) and k < 1:  # other kinds: vLLM's own validation
        raise SpeculativeConfigError(
            field="speculative_config.num_speculative_tokens",
            value=k,
            allowed="an integer of at least 1",
            remedy="start with 3 to 5 for an EAGLE-3 draft",
        )


def _is_ours(config: Mapping[str, Any]) -> bool:
    fuses_aux_states = eagle_config(config).get("use_aux_hidden_state", True)
    return (
        published_architecture(config) in DRAFTER_OF
        and "speculators_model_type" not in config
        and bool(fuses_aux_states)
    )


def _refuse_if_needed(engine_args: Any, target_model_config: Any) -> None:
    request = read_request(engine_args)
    if request is None:
        return
    spec = _inspect(request, target_model_config, engine_args, Options())
    if spec is None or not spec.stock_gaps:
        return
    from vllm_eagle_ext.compat import TESTED_VLLM, vllm_version

    raise UnsupportedVllmError(
        field="vLLM version",
        value=vllm_version(),
        allowed=f"{TESTED_VLLM} for the draft {spec.model!r}, which vLLM alone would serve wrongly: "
        + "; ".join(spec.stock_gaps),
        remedy='install a tested vLLM, or go on with {"eagle_ext": {"untested_vllm": true}}, or '
        'accept stock behaviour with {"eagle_ext": {"enabled": false}}',
    )


def apply_spec(config: Any, spec: DraftSpec) -> None:
    """Write boundaries, flags and our architecture where both runners and all drafters read them."""
    hf_config = config.draft_model_config.hf_config
    boundaries = list(spec.aux_layers.boundaries)
    hf_config.eagle_aux_hidden_state_layer_ids = boundaries
    hf_config.num_aux_hidden_states = len(boundaries)
    hf_config.eagle_config = {
        **(getattr(hf_config, "eagle_config", None) or {}),
        "eagle_aux_hidden_state_layer_ids": boundaries,
    }
    if getattr(hf_config, "target_hidden_size", 0) is None:  # null would reach the drafter as it is
        hf_config.target_hidden_size = spec.target_hidden_size
    hf_config.fc_norm = spec.fc_norm
    hf_config.norm_output = spec.norm_output
    write_stamp(hf_config)
    hf_config.architectures = [DRAFTER_OF[spec.architecture]]
    config.update_arch_()


def _log_decision(spec: DraftSpec, target_model_config: Any) -> None:
    layers = spec.aux_layers
    norms = [name for name, on in (("fc_norm", spec.fc_norm), ("norm_output", spec.norm_output)) if on]
    log_once(
        logger,
        logging.WARNING if layers.given_ids is None else logging.INFO,
        f"Draft {spec.model!r} ({spec.family}, norms: {', '.join(norms) or 'none'}, from "
        f"{spec.norm_output_source}) reads target boundaries {list(layers.boundaries)} of "
        f"{target_model_config.get_total_num_hidden_layers()}; rule: {layers.rule}; served by "
        f"{DRAFTER_OF[spec.architecture]}.",
    )
