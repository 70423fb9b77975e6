# SPDX-License-Identifier: Apache-2.0
"""DraftSpec: what one draft is, decided once and read by everything after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm_eagle_ext.checkpoint.aux_layers import AuxLayers, Convention, resolve_aux_layers
from vllm_eagle_ext.checkpoint.checks import check_draft
from vllm_eagle_ext.checkpoint.files import DraftFiles, eagle_config
from vllm_eagle_ext.errors import UnsupportedDraftError

NormOutput = Literal["checkpoint"] | bool


@dataclass(frozen=True, slots=True)
class TargetFacts:
    num_layers: int  # N
    hidden_size: int  # Ht
    vocab_size: int  # V


@dataclass(frozen=True, slots=True)
class DraftSpec:
    model: str  # as the user named it
    architecture: str  # as published
    aux_layers: AuxLayers
    fc_norm: bool  # one RMSNorm per aux layer before fc
    norm_output: bool  # the normalised hidden state is fed back
    norm_output_source: str  # where the flag came from
    target_hidden_size: int  # Ht
    stock_gaps: tuple[str, ...]  # why vLLM alone would serve this draft wrongly; empty: it would not

    @property
    def family(self) -> str:
        return "post-norm EAGLE-3" if self.norm_output else "EAGLE-3"


def read_draft_spec(
    files: DraftFiles,
    target: TargetFacts,
    *,
    aux_layers: Convention | Sequence[int] = "auto",
    norm_output: NormOutput = "checkpoint",
) -> DraftSpec:
    """Decide what a Llama-type EAGLE-3 draft is and check it against its target.

    Raises:
        UnsupportedDraftError: the first rule of `checks` that the checkpoint breaks.
    """
    config = files.config
    layers = resolve_aux_layers(config, num_target_layers=target.num_layers, override=aux_layers)
    fc_norm = read_flag(config, "fc_norm")
    post_norm = read_flag(config, "norm_output") if norm_output == "checkpoint" else norm_output
    check_draft(
        files,
        num_aux_layers=len(layers.boundaries),
        layer_names=layers.rule,
        fc_norm=fc_norm,
        norm_before_fc=read_flag(config, "norm_before_fc"),
        target_hidden_size=target.hidden_size,
        target_vocab_size=target.vocab_size,
    )
    return DraftSpec(
        model=files.model,
        architecture=published_architecture(config),
        aux_layers=layers,
        fc_norm=fc_norm,
        norm_output=post_norm,
        norm_output_source="config" if norm_output == "checkpoint" else "option norm_output",
        target_hidden_size=target.hidden_size,
        stock_gaps=tuple(_stock_gaps(config, layers, post_norm, fc_norm)),
    )


def published_architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures") or [""]
    return str(architectures[0])


def read_flag(config: Mapping[str, Any], name: str) -> bool:
    """A flag at top level or in `eagle_config`; both mean the same, and must not differ."""
    nested = eagle_config(config).get(name)
    top = config.get(name)
    if top is not None and nested is not None and bool(top) != bool(nested):
        raise UnsupportedDraftError(
            field=f"{name} at top level and in eagle_config",
            value=(top, nested),
            allowed="the same value in both places",
            remedy="ask the publisher which one the draft was trained with, and correct config.json",
        )
    return bool(top if top is not None else nested)


def _stock_gaps(
    config: Mapping[str, Any], layers: AuxLayers, norm_output: bool, fc_norm: bool
) -> list[str]:
    """Where vLLM 0.32 and 0.33 alone read this config otherwise than it was meant."""
    gaps = []
    if layers.given_ids is not None and config.get("eagle_aux_hidden_state_layer_ids") is None:
        gaps.append("layer ids nested in eagle_config are read by the V1 runner only, one layer low")
    elif layers.given_ids is not None and layers.boundaries != layers.given_ids:
        gaps.append("layer ids are read as boundaries")
    elif len(layers.boundaries) != 3 and not config.get("num_aux_hidden_states"):
        gaps.append("the width of fc follows num_aux_hidden_states, which is missing")
    for name, value in (("norm_output", norm_output), ("fc_norm", fc_norm)):
        if value != bool(config.get(name)):
            gaps.append(f"{name} is read at top level of config.json only")
    return gaps
