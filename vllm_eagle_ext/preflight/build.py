# SPDX-License-Identifier: Apache-2.0
"""Takes a start through the preflight: read what is asked, inspect the draft, let vLLM build its
SpeculativeConfig, and apply to it what was decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from vllm_eagle_ext import compat, failed_start, metrics
from vllm_eagle_ext.checkpoint import Inspection
from vllm_eagle_ext.checkpoint.registry import methods
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.engine_rules import (
    ENGINE_RULES,
    OPTION_RULES,
    SETTLED_PAIR_RULES,
    SETTLED_RULES,
    UNTESTED_RULES,
)
from vllm_eagle_ext.errors import UnsupportedVllmError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.preflight.apply import apply_spec, require_quantisation
from vllm_eagle_ext.preflight.apply_engine import (
    apply_hybrid_state,
    keep_last_block,
    keep_prompts,
    require_drafts,
    share_the_targets_group,
    take_back,
)
from vllm_eagle_ext.preflight.inspect_start import inspect_asked, inspect_start
from vllm_eagle_ext.preflight.messages import judge, log_inspection
from vllm_eagle_ext.preflight.nulls import build_without_nulls, readable
from vllm_eagle_ext.preflight.of_vllm import (
    asked_engine,
    asked_speculative,
    engine_of_vllm,
    settled,
    with_method,
)
from vllm_eagle_ext.releases import how_tested

logger = get_logger(__name__)


def build_speculative_config(
    engine_args: Any, target_model_config: Any, build: Callable[[], Any]
) -> Any:
    """Check the draft, let vLLM build its SpeculativeConfig, then write what was decided into it.

    Args:
        engine_args: vLLM's EngineArgs.
        target_model_config: ModelConfig of the target.
        build: vLLM's own builder, without arguments.

    Returns:
        What `build` returned; only drafts of a registered family are touched.

    Raises:
        EagleExtError: options, request or checkpoint that cannot be served rightly.
    """
    take_back(engine_args)
    options = parse_options(engine_args.additional_config)
    metrics.withdraw()
    if not options.enabled:
        return build()
    if asked_speculative(engine_args):
        failed_start.watch()
    engine = engine_of_vllm(engine_args, target_model_config, options)
    judge(ENGINE_RULES, engine)
    inspection = None
    if engine.speculative:
        # Before vLLM builds, whose own errors would come first.
        inspection = inspect_start(engine_args, target_model_config, engine)
    config = _build(build, inspection, engine.dtype)
    if config is None:
        require_drafts(options)
        return None
    if engine.speculative and engine.method is None and isinstance(config.model, str):
        engine = with_method(engine, config.method)
        inspection = inspect_start(engine_args, target_model_config, engine)
    _apply(engine_args, target_model_config, config, settled(engine, engine_args, config), inspection)
    return config


def _build(build: Callable[[], Any], inspection: Inspection | None, dtype: str) -> Any:
    """Let vLLM build, without what of a supported draft's config would stop it."""
    if inspection is None or inspection.case is None:
        return build()
    with compat.reading_configs(partial(readable, dtype=dtype), build_without_nulls):
        return build()


def _apply(
    engine_args: Any, target: Any, config: Any, engine: EngineFacts, inspection: Inspection | None
) -> None:
    case = None
    if inspection is not None and inspection.case is not None:
        case = replace(inspection.case, engine=engine)
        judge(SETTLED_PAIR_RULES, case)
    if inspection is not None and config.method in methods():
        _apply_draft(engine_args, target, config, inspection)
    is_ours = case is not None or engine.architecture in REPLAYING_TARGETS
    judge((*OPTION_RULES, *(SETTLED_RULES if is_ours else ())), engine)
    if is_ours:
        keep_prompts(engine_args, engine)
    apply_hybrid_state(engine_args, target, config, engine, case)
    if case is not None:
        logger.info(
            "Drafting is on: %s tokens per step with %r. See acceptance in the log (SpecDecoding "
            "metrics) and in /metrics (vllm:spec_decode_num_accepted_tokens_total).",
            config.num_speculative_tokens, config.model,
        )  # fmt: skip
        logger.info("vLLM %s, %s.", engine.release, how_tested(engine.release))


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
    apply_spec(config, case, strict=case.engine.options.strict)
    require_quantisation(config, case)
    log_inspection(inspection, target.get_total_num_hidden_layers())
    metrics.publish_draft(engine_args, target, case.spec, config.num_speculative_tokens)


def build_on_untested_vllm(engine_args: Any, target_model_config: Any, build: Callable[[], Any]) -> Any:
    """Keep stock behaviour outside the tested range, but refuse a draft that needs this package.

    Whatever else goes wrong here is logged, and vLLM decides: nothing is known of this release.

    Raises:
        OptionsError: an unknown option or value.
        UnsupportedVllmError: a draft that stock vLLM would misload.
    """
    take_back(engine_args)
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
            logger.warning(
                "hybrid_state is 'replay', which is not used on this untested vLLM: it keeps one state "
                "block per draft token."
            )
    return build()


def _refuse_if_needed(engine_args: Any, target_model_config: Any) -> None:
    if not asked_speculative(engine_args):
        return
    engine = asked_engine(engine_args, target_model_config, Options())
    inspection = inspect_asked(engine_args, target_model_config, engine)
    if inspection and inspection.case:
        judge(UNTESTED_RULES, inspection.case)
