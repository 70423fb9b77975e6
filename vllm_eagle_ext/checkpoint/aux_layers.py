# SPDX-License-Identifier: Apache-2.0
"""From the layer ids of a draft's config to boundaries.

Boundary b is the residual stream entering target layer b: 0 is the embeddings, N the output of the
last layer before the final norm. Training frameworks write either boundaries or the ids of layers
whose output is read (boundary = id + 1), and no key says which; the rules below are tried in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm_eagle_ext.checkpoint.files import eagle_config
from vllm_eagle_ext.errors import UnsupportedDraftError

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
Convention = Literal["auto", "boundary", "output"]


@dataclass(frozen=True, slots=True)
class AuxLayers:
    boundaries: tuple[int, ...]
    rule: str  # which rule chose them, for the log
    given_ids: tuple[int, ...] | None  # as the config has them; None: it names none


def default_boundaries(num_target_layers: int) -> tuple[int, int, int]:
    """EAGLE-3's own capture set."""
    return (2, num_target_layers // 2, num_target_layers - 3)


def resolve_aux_layers(
    config: Mapping[str, Any],
    *,
    num_target_layers: int,
    override: Convention | Sequence[int] = "auto",
) -> AuxLayers:
    """Boundaries of a Llama-type EAGLE-3 draft.

    Args:
        config: the draft's config.json.
        num_target_layers: N.
        override: the option `aux_layers`.

    Raises:
        UnsupportedDraftError: lists that contradict each other, or ids that are repeated, out of
            order or outside 0..N.
    """
    nested = _ids(eagle_config(config), f"eagle_config.{IDS_KEY}")
    top = _ids(config, IDS_KEY)
    if isinstance(override, str):
        layers = _by_rules(top, nested, num_target_layers, override)
    else:
        layers = AuxLayers(tuple(override), "option aux_layers lists the boundaries", top or nested)
    _validate(layers, num_target_layers)
    return layers


def _ids(holder: Mapping[str, Any], field: str) -> tuple[int, ...] | None:
    ids = holder.get(IDS_KEY)
    if ids is None or ids == []:
        return None
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise UnsupportedDraftError(
            field=f"{field} of the draft's config.json",
            value=ids,
            allowed="a list of integers",
            remedy='correct the file, or list the boundaries: {"eagle_ext": {"aux_layers": [..]}}',
        )
    return tuple(ids)


def _by_rules(
    top: tuple[int, ...] | None,
    nested: tuple[int, ...] | None,
    num_target_layers: int,
    convention: Convention,
) -> AuxLayers:
    if top is None and nested is None:
        return AuxLayers(
            default_boundaries(num_target_layers),
            "the config names no layers, so EAGLE-3's default 2, N//2, N-3",
            None,
        )
    if top and nested and top != nested and top != _plus_one(nested):
        raise UnsupportedDraftError(
            field=f"{IDS_KEY} at top level and in eagle_config",
            value=(list(top), list(nested)),
            allowed="equal lists, or a top-level list that is the nested one plus one",
            remedy='list the boundaries: {"eagle_ext": {"aux_layers": [..]}}',
        )
    ids = top or nested or ()
    if convention == "boundary":
        return AuxLayers(ids, "option aux_layers says the ids are boundaries", ids)
    if convention == "output":
        return AuxLayers(_plus_one(ids), "option aux_layers says the ids name layer outputs", ids)
    if num_target_layers in ids:
        return AuxLayers(ids, f"the ids contain N={num_target_layers}, so they are boundaries", ids)
    if top:
        return AuxLayers(top, "ids at top level are boundaries, vLLM's meaning", ids)
    return AuxLayers(
        _plus_one(ids),
        "ids nested in eagle_config name the layers whose output is read, boundary = id + 1",
        ids,
    )


def _plus_one(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(i + 1 for i in ids)


def _validate(layers: AuxLayers, num_target_layers: int) -> None:
    """vLLM captures in ascending order and drops repetitions, so only such lists keep their meaning."""
    boundaries = layers.boundaries
    problems = []
    if any(not 0 <= b <= num_target_layers for b in boundaries):
        problems.append(f"boundaries 0 to N={num_target_layers}")
    if len(set(boundaries)) < len(boundaries):
        problems.append("each boundary once")
    elif list(boundaries) != sorted(boundaries):
        problems.append("ascending order")
    if not boundaries:
        problems.append("at least one boundary")
    if problems:
        raise UnsupportedDraftError(
            field="aux layers of the draft",
            value=list(boundaries),
            allowed=" and ".join(problems),
            remedy=f"the rule was: {layers.rule}; if it is wrong for this draft, set "
            '{"eagle_ext": {"aux_layers": "boundary" | "output" | [..]}}',
        )
