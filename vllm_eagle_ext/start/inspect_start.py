# SPDX-License-Identifier: Apache-2.0
"""Inspects the draft of a start by the rules of drafts."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

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
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.draft.target_facts import target_rope
from vllm_eagle_ext.errors import EagleExtError, GgufDraftError, SpeculativeConfigError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.start.apply_engine import require_followed
from vllm_eagle_ext.start.ask import MISTAKABLE, asked_speculative
from vllm_eagle_ext.start.messages import raise_errors

logger = get_logger(__name__)

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
    model: Any = speculative.get("model")  # a string, once checked
    place = _place(engine_args, speculative)
    if request.method not in methods() and not _may_be_mistaken(model, request.method, place):
        return None
    if method_may_lie_in_the_target(request.method) and model in (None, target.model):
        return None
    if request.method in methods():
        _check_request(model, speculative.get("num_speculative_tokens"))
    if "://" in model:
        require_followed(request.options, model)
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
        require_followed(request.options, model)
        logger.warning("Draft %r is a GGUF: not checked; left to vllm-gguf-plugin.", model)
        return None
    if hook := own_model_types().get(str(files.config.get("model_type"))):
        resolve_name(hook)()
    inspection = inspect_draft(files, target_facts(target), request)
    raise_errors(inspection, model)
    return inspection


def _check_request(model: object, k: object) -> None:
    """Refuse a request that names no draft or no positive K.

    Raises:
        SpeculativeConfigError: no draft is named, or K is below 1.
    """
    if not isinstance(model, str) or not model:
        raise SpeculativeConfigError(
            field="speculative_config.model",
            value=model,
            allowed="a folder or a repository of the hub",
            remedy="name the draft checkpoint",
        )
    if isinstance(k, int) and k < 1:  # other kinds: vLLM's own validation
        raise SpeculativeConfigError(
            field="speculative_config.num_speculative_tokens",
            value=k,
            allowed="an integer of at least 1",
            remedy="start with 3 to 5 for an EAGLE-3 draft",
        )


def target_facts(target: Any) -> TargetFacts:
    """Collect what the rules ask of the target, as vLLM has read it."""
    folder, text = Path(target.model), target.hf_text_config.to_dict()
    return TargetFacts(
        num_layers=target.get_total_num_hidden_layers(),
        hidden_size=target.get_hidden_size(),
        vocab_size=target.get_vocab_size(),
        rope=target_rope(text),
        max_position_embeddings=text.get("max_position_embeddings"),
        folder=folder if folder.is_dir() else None,
    )


def _may_be_mistaken(model: object, method: str | None, place: dict[str, Any]) -> bool:
    """Find out whether a supported draft is named under a method that would run it as something else.

    Reads only config.json.
    """
    if method not in MISTAKABLE or not isinstance(model, str):
        return False
    if model in ("ngram", "[ngram]"):
        return False
    try:
        config = read_config(model, **place)
    except EagleExtError:
        return False  # whatever it is, vLLM reports it
    is_plain = config.get("architectures") in [[name] for name in PLAIN_MODELS]
    return drafter_of(config, None) is not None and not is_plain


def _place(engine_args: Any, speculative: dict[str, Any]) -> dict[str, Any]:
    """Say where the draft's files are looked for, as keywords of the functions that read them."""
    return {
        "revision": speculative.get("revision"),
        "token": engine_args.hf_token,
        "download_dir": engine_args.download_dir,
    }
