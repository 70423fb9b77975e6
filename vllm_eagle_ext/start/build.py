# SPDX-License-Identifier: Apache-2.0
"""Takes a start through two steps of vLLM's: where it builds its SpeculativeConfig the draft is
inspected, and what was decided is written; once it has its VllmConfig the engine is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.draft import (
    DraftFiles,
    Inspection,
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.draft.draft_files import gguf_plugin_is_active
from vllm_eagle_ext.draft.registry import (
    PLAIN_MODELS,
    drafter_of,
    method_may_lie_in_the_target,
    methods,
    own_model_types,
)
from vllm_eagle_ext.draft.silent_keys import LAYER_BLOCK, without_nulls
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.draft.target_facts import table_scale, target_rope
from vllm_eagle_ext.errors import (
    EagleExtError,
    GgufDraftError,
    UnsupportedVllmError,
)
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.start import failed_start, metrics
from vllm_eagle_ext.start.apply import (
    apply_hybrid_state,
    apply_spec,
    keep_last_block,
    keep_prompts,
    require_quantisation,
    share_the_targets_group,
    take_back,
)
from vllm_eagle_ext.start.ask import (
    MISTAKABLE,
    asked_speculative,
    draft_request,
    half_built_config,
)
from vllm_eagle_ext.start.messages import judge, log_inspection, raise_errors
from vllm_eagle_ext.start.rules import ENGINE_RULES, UNTESTED_RULES
from vllm_eagle_ext.start.rules.vllm_config import schedule_of
from vllm_eagle_ext.version import how_tested

logger = get_logger(__name__)

_TO_JUDGE = "_eagle_ext_to_judge"  # field of EngineArgs: options, and the case of a served draft


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
    vars(engine_args).pop(_TO_JUDGE, None)
    options = parse_options(engine_args.additional_config)
    metrics.withdraw()
    if not options.enabled:
        return build()
    # Before vLLM builds, whose own errors would come first.
    asked, inspection = asked_speculative(engine_args), None
    request = partial(draft_request, engine_args, target_model_config, parallel_config, options)
    if asked:
        failed_start.watch()
        if asked.get("method") in (*methods(), *MISTAKABLE):  # of others nothing is read
            inspection = inspect_start(engine_args, target_model_config, request())
    if inspection is None or inspection.case is None:
        config = build()
    else:  # vLLM reads the config of a supported draft without the nulls that would stop it
        dtype = str(target_model_config.dtype).removeprefix("torch.")
        with compat.reading_configs(partial(readable, dtype=dtype), build_without_nulls):
            config = build()
    case = None
    if config is None:
        setattr(engine_args, _TO_JUDGE, (options, case))
        return None
    # vLLM has guessed the method: look again with it.
    if asked and asked["method"] is None and isinstance(config.model, str):
        inspection = inspect_start(engine_args, target_model_config, request(method=config.method))
    if inspection is not None and config.method in methods():
        case = inspection.case
        _apply_draft(engine_args, target_model_config, config, inspection)
    if case or target_model_config.architecture in REPLAYING_TARGETS:
        half_built = half_built_config(engine_args, target_model_config, parallel_config, config)
        keep_prompts(engine_args, half_built)
        apply_hybrid_state(engine_args, half_built, options)
    setattr(engine_args, _TO_JUDGE, (options, case))
    return config


def judge_engine(engine_args: Any, vllm_config: Any) -> None:
    """Judge the engine that vLLM has configured around a draft.

    Raises:
        EagleExtError: what it cannot serve rightly.
    """
    if _TO_JUDGE not in vars(engine_args):
        return
    options, case = vars(engine_args).pop(_TO_JUDGE)
    judge(ENGINE_RULES, options, config=vllm_config, case=case)
    if case is not None:
        config, release = vllm_config.speculative_config, compat.vllm_version()
        schedule = f", by batch size {steps}," if (steps := schedule_of(vllm_config)) else ""
        logger.info(
            "Drafting is on: %s tokens per step%s with %r. See acceptance in the log (SpecDecoding "
            "metrics) and in /metrics (vllm:spec_decode_num_accepted_tokens_total).",
            config.num_speculative_tokens, schedule, config.model,
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
    apply_spec(config, case)
    require_quantisation(config, case)
    log_inspection(case, inspection.findings, target.get_total_num_hidden_layers())
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
            if asked_speculative(engine_args):
                request = draft_request(engine_args, target_model_config, parallel_config, Options())
                inspection = inspect_start(engine_args, target_model_config, request)
                if inspection and inspection.case:
                    judge(UNTESTED_RULES, Options(), case=inspection.case)
        except UnsupportedVllmError:
            raise
        except Exception as error:  # noqa: BLE001
            logger.warning("The draft could not be checked on this vLLM: %s", error)
    return build()


# No class refuses a null of these, and other code reads them first.
_READ_BEFORE = ("auto_map", "rope_theta")
_MOST_TRIES = 64
_REFUSED = re.compile(r"[Ff]ield '(\w{1,64})'")


def readable(config: Mapping[str, Any], *, dtype: str) -> Mapping[str, Any]:
    """Return a config without the nulls of blocks and of `_READ_BEFORE`, and with a dtype.

    Args:
        dtype: to state where none is. vLLM would look for it in each file that is called safetensors.
    """
    block = config.get(LAYER_BLOCK)
    if config.get("speculators_model_type") and isinstance(block, Mapping):
        # Without this type vLLM goes by `speculators_config`, which may be missing.
        named = {} if config.get("model_type") else {"model_type": "speculators"}
        # Its class refuses nothing; `build_without_nulls` is not asked.
        return {**config, **named, LAYER_BLOCK: _with_dtype(without_nulls(block), dtype)}
    nulls = {key: None for key, value in config.items() if value is None and key not in _READ_BEFORE}
    return _with_dtype(without_nulls(config) | nulls, dtype)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    if not config.get("dtype"):  # the class of speculators reads no `torch_dtype`
        config["dtype"] = config.pop("torch_dtype", None) or dtype
    return config


def build_without_nulls(
    config_class: type, config: Mapping[str, Any], build: Callable[[dict[str, Any]], Any]
) -> Any:
    """Let a class build a config; drop a null that it refuses, and let it try again.

    A null of a key that is no field of the class is dropped first: vLLM would take it for the value.
    """
    own = {field.name for field in fields(config_class)}
    kept = {key: value for key, value in config.items() if value is not None or key in own}
    for _ in range(_MOST_TRIES):
        try:
            return build(dict(kept))
        except Exception as error:
            key = next(iter(_REFUSED.findall(str(error))), None)
            if key is None or kept.get(key, "") is not None:
                raise
            del kept[key]
    return build(kept)


# By name. A dry start is given here what its parent has read, and reads no draft itself.
READ: dict[str, DraftFiles] = {}


def inspect_start(engine_args: Any, target: Any, request: DraftRequest) -> Inspection | None:
    """Apply the rules to the draft's files.

    Returns:
        None for drafts that are not looked at: those of another method, or in another kind of storage.

    Raises:
        EagleExtError: the request or the checkpoint cannot be served rightly.
    """
    # Whether it is a draft of this package's, by the method that was asked for or by its config.
    speculative = asked_speculative(engine_args)
    model = speculative.get("model")
    place = {
        "revision": speculative.get("revision"), "token": engine_args.hf_token,
        "download_dir": engine_args.download_dir,
    }  # fmt: skip
    if not isinstance(model, str) or not model:  # vLLM has its words for it, or another draft
        return None
    if request.method not in methods() and not _may_be_mistaken(model, request.method, place):
        return None
    if method_may_lie_in_the_target(request.method) and model == target.model:
        return None
    if "://" in model:
        logger.warning(
            "Draft %r lies neither in a folder nor on the hub: not checked; plain vLLM loads it.", model
        )
        return None
    # Its files, and what the rules say of them.
    try:
        files = READ.get(model) or read_draft_files(model, **place)
    except GgufDraftError:
        if not gguf_plugin_is_active():
            raise
        logger.warning("Draft %r is a GGUF: not checked; left to vllm-gguf-plugin.", model)
        return None
    if hook := own_model_types().get(str(files.config.get("model_type"))):
        resolve_name(hook)()
    inspection = inspect_draft(files, target_facts(target), request)
    raise_errors(inspection, model)
    return inspection


def target_facts(target: Any) -> TargetFacts:
    """Collect what the rules ask of the target, as vLLM has read it."""
    folder, text = Path(target.model), target.hf_text_config.to_dict()
    return TargetFacts(
        num_layers=target.get_total_num_hidden_layers(),
        hidden_size=target.get_hidden_size(),
        vocab_size=target.get_vocab_size(),
        rope=target_rope(text),
        max_position_embeddings=text.get("max_position_embeddings"),
        embedding_scale=table_scale(text),
        folder=folder if folder.is_dir() else None,
    )


def _may_be_mistaken(model: str, method: str | None, place: dict[str, Any]) -> bool:
    """Find out, by config.json, whether a method would run a supported draft as something else."""
    if method not in MISTAKABLE or model in ("ngram", "[ngram]"):
        return False
    try:
        config = read_config(model, **place)
    except EagleExtError:
        return False  # whatever it is, vLLM reports it
    is_plain = config.get("architectures") in [[name] for name in PLAIN_MODELS]
    return drafter_of(config, None) is not None and not is_plain
