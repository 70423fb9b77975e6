# SPDX-License-Identifier: Apache-2.0
"""Takes a start through the preflight, in two steps of vLLM's: where it builds its SpeculativeConfig the
draft is inspected and what was decided is written; once it has its VllmConfig the engine is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.draft import Case, Inspection
from vllm_eagle_ext.draft.registry import methods
from vllm_eagle_ext.draft.silent_keys import LAYER_BLOCK, ROPES, without_nulls
from vllm_eagle_ext.errors import UnsupportedVllmError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.releases import how_tested
from vllm_eagle_ext.start import failed_start, metrics
from vllm_eagle_ext.start.apply import apply_spec, require_quantisation
from vllm_eagle_ext.start.apply_engine import (
    apply_hybrid_state,
    keep_last_block,
    keep_prompts,
    require_drafts,
    share_the_targets_group,
    take_back,
)
from vllm_eagle_ext.start.ask import (
    asked_speculative,
    draft_request,
    half_built_config,
    is_looked_at,
)
from vllm_eagle_ext.start.inspect_start import inspect_start
from vllm_eagle_ext.start.messages import judge, log_inspection
from vllm_eagle_ext.start.rules import ENGINE_RULES, UNTESTED_RULES

logger = get_logger(__name__)

_JUDGED = "_eagle_ext_judged"  # field of EngineArgs: what the second step is given


@dataclass(frozen=True, slots=True)
class _Start:
    """Holds what the first step hands to the second."""

    options: Options
    case: Case | None  # of a draft that this package serves


def build_speculative_config(
    engine_args: Any, target_model_config: Any, parallel_config: Any, build: Callable[[], Any]
) -> Any:
    """Check the draft, let vLLM build its SpeculativeConfig, then write what was decided into it.

    Args:
        engine_args: vLLM's EngineArgs.
        target_model_config: ModelConfig of the target.
        parallel_config: ParallelConfig of the target.
        build: vLLM's own builder, without arguments.

    Returns:
        What `build` returned; only drafts of a registered family are touched.

    Raises:
        EagleExtError: options, request or checkpoint that cannot be served rightly.
    """
    take_back(engine_args)
    vars(engine_args).pop(_JUDGED, None)
    options = parse_options(engine_args.additional_config)
    metrics.withdraw()
    if not options.enabled:
        return build()
    # Before vLLM builds, whose own errors would come first.
    asked, inspection = asked_speculative(engine_args), None
    request = partial(draft_request, engine_args, target_model_config, parallel_config, options)
    if asked:
        failed_start.watch()
        if is_looked_at(engine_args, target_model_config):
            inspection = inspect_start(engine_args, target_model_config, request())
    config = _build(build, inspection, target_model_config)
    if config is None:
        require_drafts(options)
    elif asked and asked["method"] is None and isinstance(config.model, str):
        inspection = inspect_start(engine_args, target_model_config, request(method=config.method))
    case = inspection.case if inspection and config and config.method in methods() else None
    if config is not None and inspection is not None and config.method in methods():
        _apply_draft(engine_args, target_model_config, config, inspection)
    if config is not None and (case or target_model_config.architecture in REPLAYING_TARGETS):
        half_built = half_built_config(engine_args, target_model_config, parallel_config, config)
        keep_prompts(engine_args, half_built)
        apply_hybrid_state(engine_args, half_built, options)
    setattr(engine_args, _JUDGED, _Start(options, case))
    return config


def _build(build: Callable[[], Any], inspection: Inspection | None, target: Any) -> Any:
    """Let vLLM build, without what of a supported draft's config would stop it."""
    if inspection is None or inspection.case is None:
        return build()
    dtype = str(target.dtype).removeprefix("torch.")
    with compat.reading_configs(partial(readable, dtype=dtype), build_without_nulls):
        return build()


def judge_engine(engine_args: Any, vllm_config: Any) -> None:
    """Judge the engine that vLLM has configured around a draft.

    Raises:
        EagleExtError: what it cannot serve rightly.
    """
    start: _Start | None = vars(engine_args).pop(_JUDGED, None)
    if start is None:
        return
    judge(ENGINE_RULES, start.options, config=vllm_config, case=start.case)
    if start.case is not None:
        config, release = vllm_config.speculative_config, compat.vllm_version()
        logger.info(
            "Drafting is on: %s tokens per step with %r. See acceptance in the log (SpecDecoding "
            "metrics) and in /metrics (vllm:spec_decode_num_accepted_tokens_total).",
            config.num_speculative_tokens, config.model,
        )  # fmt: skip
        logger.info("vLLM %s, %s.", release, how_tested(release))


def _apply_draft(engine_args: Any, target: Any, config: Any, inspection: Inspection) -> None:
    case = inspection.case
    if case is None:
        kind = getattr(config.draft_model_config, "architectures", None)
        logger.warning(
            "This package does not handle the draft %r (%s): plain vLLM loads it.", config.model, kind
        )
        return
    keep_last_block(engine_args, config, case)
    share_the_targets_group(engine_args, target, case)
    apply_spec(config, case, strict=case.request.options.strict)
    require_quantisation(config, case)
    log_inspection(inspection, target.get_total_num_hidden_layers())
    metrics.publish_draft(engine_args, target, case.spec, config.num_speculative_tokens)


def build_on_untested_vllm(
    engine_args: Any, target_model_config: Any, parallel_config: Any, build: Callable[[], Any]
) -> Any:
    """Keep stock behaviour outside the tested range, but refuse a draft that needs this package.

    Whatever else goes wrong here is logged, and vLLM decides: nothing is known of this release.

    Raises:
        OptionsError: an unknown option or value.
        UnsupportedVllmError: a draft that stock vLLM would misload.
    """
    take_back(engine_args)
    options = parse_options(getattr(engine_args, "additional_config", None))
    if options.untested_vllm and options.enabled:
        return build_speculative_config(engine_args, target_model_config, parallel_config, build)
    if options.enabled:
        try:
            _refuse_if_needed(engine_args, target_model_config, parallel_config)
        except UnsupportedVllmError:
            raise
        except Exception as error:  # noqa: BLE001
            logger.warning("The draft could not be checked on this vLLM: %s", error)
        if options.hybrid_state == "replay":
            logger.warning(
                "hybrid_state is 'replay', which is not used on this untested vLLM: it keeps one state "
                "block per draft token."
            )
    return build()


def _refuse_if_needed(engine_args: Any, target: Any, parallel: Any) -> None:
    if asked_speculative(engine_args):
        request = draft_request(engine_args, target, parallel, Options())
        inspection = inspect_start(engine_args, target, request)
        if inspection and inspection.case:
            judge(UNTESTED_RULES, Options(), case=inspection.case)


# A null of these stops a start elsewhere: no class refuses it.
_READ_ELSEWHERE = ("auto_map", "rope_theta")
_MOST_TRIES = 64
_REFUSED = re.compile(r"[Ff]ield '(\w{1,64})'")


def readable(config: Mapping[str, Any], *, dtype: str) -> Mapping[str, Any]:
    """Return what no class is asked about.

    Args:
        dtype: to state where none is. vLLM would look for it in each file that is called safetensors.
    """
    block = config.get(LAYER_BLOCK)
    if "speculators_model_type" in config and isinstance(block, Mapping):
        # Without this type vLLM goes by `speculators_config`, which may be missing.
        named = {} if config.get("model_type") else {"model_type": "speculators"}
        # Its class refuses nothing, and vLLM computes with what it took.
        return {**config, **named, LAYER_BLOCK: _with_dtype(without_nulls(block), dtype)}
    kept = {
        key: without_nulls(value) if key in ROPES and isinstance(value, Mapping) else value
        for key, value in config.items()
        if value is not None or key not in _READ_ELSEWHERE
    }
    return _with_dtype(kept, dtype)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    if not config.get("dtype"):  # the class of speculators reads no `torch_dtype`
        config["dtype"] = config.pop("torch_dtype", None) or dtype
    return config


def build_without_nulls(
    config_class: type, config: Mapping[str, Any], build: Callable[[dict[str, Any]], Any]
) -> Any:
    """Let a class build a config; drop a null that it refuses, and let it try again.

    A null in the place of a method or property, which the class does not look at, is dropped first.
    """
    own = {field.name for field in fields(config_class)}
    kept = {
        key: value
        for key, value in config.items()
        if value is not None or key in own or not hasattr(config_class, key)
    }
    for _ in range(_MOST_TRIES):
        try:
            return build(dict(kept))
        except Exception as error:
            key = next(iter(_REFUSED.findall(str(error))), None)
            if key is None or kept.get(key, "") is not None:
                raise
            del kept[key]
    return build(kept)
