# SPDX-License-Identifier: Apache-2.0
"""Parses `--additional-config '{"eagle_ext": {...}}'` once into a frozen model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.log import get_logger, log_once

logger = get_logger(__name__)

KEY = "eagle_ext"


class Options(BaseModel):
    """The options of one engine; the defaults serve the published files."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    enabled: bool = Field(
        default=True, description="true or false; false leaves every draft and target to plain vLLM"
    )
    untested_vllm: bool = Field(
        default=False,
        description="true or false; true serves with vLLM releases outside the tested range too",
    )
    strict: bool = Field(
        default=True,
        description="true or false; false turns errors that an engine could start with into warnings",
    )
    aux_layers: Literal["auto", "input", "output"] | list[Annotated[int, Field(ge=0)]] = Field(
        default="auto",
        description='"auto": the draft\'s format decides what its ids mean. "input": the ids name '
        'layers whose input is read. "output": the ids name layers whose output is read. Else: a list '
        "of layers whose input is read",
    )
    gate_layout: Literal["interleaved", "concat"] | None = Field(
        default=None,
        description='"interleaved" (per head, query before gate) or "concat" (all queries first)',
    )
    draft_window: Annotated[int, Field(ge=2)] | Literal["auto"] | None = Field(
        default=None,
        description="the number of last tokens that the draft's layers attend to, 2 or more. "
        '"auto": as many as the positions in its config. null: all. Published windows stay as they are',
    )
    draft_vocabulary: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="the path of a JSON list of ascending token ids. The draft chooses only among these",
    )
    norm_output: Literal["checkpoint"] | bool = Field(
        default="checkpoint",
        description='"checkpoint" (the flag of its config), or true or false in its place',
    )
    hybrid_state: Literal["auto", "replay", "per_token"] = Field(
        default="auto",
        description='"auto": replay where it is possible, on a GPU from K = 3. "replay": one state per '
        'request, and accepted tokens are recomputed. "per_token": one state block per draft token, as '
        "in vLLM",
    )
    replay_kernels: Literal["auto", "sequential", "chunked"] = Field(
        default="auto",
        description='"auto": chunked on a GPU where the model\'s shapes allow it and the check at the '
        'start passes. "sequential": row by row, the same bits as vLLM\'s own kernel. "chunked": all '
        "rows of a step at once on tensor cores, rounded differently, only on GPUs",
    )
    adaptive_verification: bool = Field(
        default=False,
        description="true or false; true lets vLLM's enable_adaptive_verification run on a hybrid "
        "target with replay, untested on GPUs",
    )


def parse_options(additional_config: object) -> Options:
    """Read this package's part of vLLM's `additional_config`; other plugins' keys stay as they are.

    Raises:
        OptionsError: unknown key, or a value of the wrong kind.
    """
    if not isinstance(additional_config, Mapping):
        return Options()
    _warn_of_stray(additional_config)
    given = additional_config.get(KEY, {})
    if not isinstance(given, Mapping):
        raise OptionsError(
            field=f"additional_config.{KEY}",
            value=given,
            allowed="an object of options",
            remedy=f'write it as {{"{KEY}": {{"enabled": true}}}}',
        )
    given = {str(key): value for key, value in given.items()}
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        place = error.errors()[0]["loc"]  # none: a key that is no text of Unicode
        unknown = next((key for key in given if key not in Options.model_fields), "")
        raise _options_error(given, place[0] if place else unknown) from None


def _warn_of_stray(additional_config: Mapping[Any, Any]) -> None:
    """Warn of options that stand where `eagle_ext` should."""
    stray = sorted(Options.model_fields.keys() & additional_config.keys())
    if stray and KEY not in additional_config:
        log_once(
            logger,
            logging.WARNING,
            f"additional_config has {', '.join(stray)}, but no key {KEY!r}: options of this package are "
            f'read only there, as in {{"{KEY}": {{"{stray[0]}": ..}}}}.',
        )


def _options_error(given: Mapping[str, Any], key: int | str) -> OptionsError:
    field = f"additional_config.{KEY}.{key}"
    known = Options.model_fields.get(str(key))
    if known is None:
        return OptionsError(
            field=field,
            value=given[str(key)],
            allowed="the keys " + ", ".join(sorted(Options.model_fields)),
            remedy=_correction(str(key)),
        )
    return OptionsError(
        field=field,
        value=given[str(key)],
        allowed=str(known.description),
        remedy=f"correct the value, or leave the key out for the default {known.default!r}",
    )


def _correction(key: str) -> str:
    if key == KEY:
        return f'leave this inner "{key}" out and write its options directly'
    alike = get_close_matches(key.lower().replace("-", "_"), Options.model_fields, n=1)
    hint = f'; did you mean "{alike[0]}"?' if alike else ""
    return f"remove the key or correct its spelling{hint}"
