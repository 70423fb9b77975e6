# SPDX-License-Identifier: Apache-2.0
"""Reads what the user asked for from `--speculative-config` or the `--spec-*` flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Names the draft and the K that an engine is asked to serve."""

    method: str | None
    model: Any  # a string, once checked
    num_speculative_tokens: Any
    revision: str | None = None
    parallel_drafting: bool = False
    quantization: Any = None
    rejection_sample_method: Any = None


def read_request(engine_args: Any) -> DraftRequest | None:
    """Read the request; None where no draft is asked for. Keys may be spelt with dashes, as in vLLM."""
    given = engine_args.speculative_config or {}
    if not isinstance(given, Mapping):
        return None
    keys = speculative_keys(given)
    request = DraftRequest(
        method=keys.get("method") or getattr(engine_args, "spec_method", None),
        model=keys.get("model") or getattr(engine_args, "spec_model", None),
        num_speculative_tokens=keys.get(
            "num_speculative_tokens", getattr(engine_args, "spec_tokens", None)
        ),
        revision=keys.get("revision"),
        parallel_drafting=bool(keys.get("parallel_drafting")),
        quantization=keys.get("quantization"),
        rejection_sample_method=keys.get("rejection_sample_method"),
    )
    return request if request.method or request.model else None


def speculative_keys(given: object) -> dict[str, Any]:
    """Spell the keys of a speculative config as vLLM does, which takes dashes too."""
    if not isinstance(given, Mapping):
        return {}
    return {str(key).replace("-", "_"): value for key, value in given.items()}


def check_request(request: DraftRequest) -> None:
    """Refuse a request that names no draft or no positive K.

    Raises:
        SpeculativeConfigError: no draft is named, or K is below 1.
    """
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
