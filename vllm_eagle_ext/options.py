# SPDX-License-Identifier: Apache-2.0
"""`--additional-config '{"eagle_ext": {...}}'`, parsed once into a frozen model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_eagle_ext.errors import OptionsError

KEY = "eagle_ext"


class Options(BaseModel):
    """Defaults serve the published checkpoints as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    enabled: bool = Field(default=True, description="true or false; false leaves vLLM as it is")
    untested_vllm: bool = Field(
        default=False, description="true or false; true serves outside the tested vLLM range"
    )
    strict: bool = Field(
        default=True,
        description="true or false; false makes warnings of errors that an engine would start with",
    )
    aux_layers: Literal["auto", "boundary", "output"] | list[Annotated[int, Field(ge=0)]] = Field(
        default="auto",
        description='"auto", "boundary" (ids as they stand), "output" (ids of layers whose output '
        "is read, +1), or a list of boundaries",
    )
    gate_layout: Literal["interleaved", "concat"] | None = Field(
        default=None,
        description='"interleaved" (per head, query before gate) or "concat" (all queries first)',
    )
    norm_output: Literal["checkpoint"] | bool = Field(
        default="checkpoint", description='"checkpoint", true or false'
    )
    hybrid_state: Literal["auto", "replay", "slots"] = Field(
        default="auto",
        description='"auto", "replay" (one state page per request of a gated delta net target) or '
        '"slots" (vLLM\'s own: one per draft token)',
    )


def parse_options(additional_config: object) -> Options:
    """Read our part of vLLM's `additional_config`; other plugins' keys are not ours to judge.

    Raises:
        OptionsError: unknown key, or a value of the wrong kind.
    """
    if not isinstance(additional_config, Mapping):
        return Options()
    given = additional_config.get(KEY, {})
    if not isinstance(given, Mapping):
        raise OptionsError(
            field=f"additional_config.{KEY}",
            value=given,
            allowed="an object of options",
            remedy=f'write it as {{"{KEY}": {{"enabled": true}}}}',
        )
    try:
        return Options.model_validate(dict(given))
    except ValidationError as error:
        raise _options_error(given, error.errors()[0]["loc"][0]) from None


def _options_error(given: Mapping[str, Any], key: int | str) -> OptionsError:
    field = f"additional_config.{KEY}.{key}"
    known = Options.model_fields.get(str(key))
    if known is None:
        return OptionsError(
            field=field,
            value=given[str(key)],
            allowed="the keys " + ", ".join(sorted(Options.model_fields)),
            remedy="remove the key or correct its spelling",
        )
    return OptionsError(
        field=field,
        value=given[str(key)],
        allowed=str(known.description),
        remedy=f"correct the value, or leave the key out for the default {known.default!r}",
    )
