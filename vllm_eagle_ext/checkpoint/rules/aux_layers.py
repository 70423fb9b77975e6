# SPDX-License-Identifier: Apache-2.0
"""Rules about the layers that are read."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.checkpoint.layer_ids import AuxLayers, BlockOrder, default_layer_ids

_ORDER = "order of the draft's aux layers"


@rule(Severity.WARNING, for_all=False)
def aux_layers_are_stated(case: Case) -> Iterable[Problem]:
    layers = case.spec.aux_layers
    if layers.published_ids is None and layers.layer_ids and "option" not in layers.rule:
        yield Problem(
            field="eagle_aux_hidden_state_layer_ids of the draft's config.json",
            value=None,
            allowed=f"its trained layers; {list(layers.layer_ids)} is taken, EAGLE-3's default",
            remedy="if acceptance is low, list the layers whose input it reads: "
            '{"eagle_ext": {"aux_layers": [..]}}',
        )


@rule(Severity.WARNING, for_all=False)
def aux_layer_ids_may_be_inputs(case: Case) -> Iterable[Problem]:
    """Warn of ids that equal EAGLE-3's default aux layers, but are read as names of outputs."""
    layers = case.spec.aux_layers
    default = default_layer_ids(case.target.num_layers)
    if layers.published_ids == default and layers.layer_ids != default and "option" not in layers.rule:
        yield Problem(
            field="nested aux layer ids of the draft",
            value=list(default),
            allowed=f"ids of outputs, so the inputs of layers {list(layers.layer_ids)}; these very "
            "numbers are EAGLE-3's default aux layers, the inputs of 2, N//2, N-3",
            remedy='compare the acceptance rate with {"eagle_ext": {"aux_layers": "input"}}',
        )


@rule(Severity.NOTE)
def aux_order_is_known(case: Case) -> Iterable[Problem]:
    layers = case.spec.aux_layers
    if layers.blocks and layers.blocks.is_certain:
        message = _what_fc_follows(layers, layers.blocks)
        yield Problem(
            field=_ORDER,
            value=list(layers.published_ids or layers.listed),
            message=message[:1].upper() + message[1:],
        )


@rule(Severity.WARNING)
def aux_order_is_unambiguous(case: Case) -> Iterable[Problem]:
    """Warn of an order of aux layers that is not certain.

    Trainers that write the same key differ in where they take the states from.
    """
    layers = case.spec.aux_layers
    blocks = layers.blocks
    if blocks and not blocks.is_certain:
        other = layers.listed if blocks.follows == "layers" else layers.layer_ids
        option = f'{{"eagle_ext": {{"aux_layers": {list(other)}}}}}'
        yield Problem(
            field=_ORDER,
            value=list(layers.published_ids or layers.listed),
            allowed=f"any; {_what_fc_follows(layers, blocks)}",
            remedy=f"if acceptance is near zero, set {option}, the other order",
        )


def _what_fc_follows(layers: AuxLayers, blocks: BlockOrder) -> str:
    taken = {
        "list": f"the blocks of fc and fc_norm are permuted to {list(layers.layer_ids)} while they are "
        "loaded, as vLLM captures them",
        "layers": f"the blocks of fc and fc_norm follow the layers, {list(layers.layer_ids)}, and stay "
        "as they are",
    }
    return f"{taken[blocks.follows]}: {blocks.reason}"


@rule(Severity.ERROR)
def aux_count_is_consistent(case: Case) -> Iterable[Problem]:
    count = len(case.spec.aux_layers.layer_ids)
    for key in ("num_aux_hidden_states", "num_aux_layers"):
        stated = getattr(case.config, key)
        if stated is not None and stated != count and case.spec.fuses_aux_states:
            yield Problem(
                field=f"{key} of the draft's config.json",
                value=stated,
                allowed=f"{count}, the number of aux layers ({case.spec.aux_layers.rule})",
                remedy='list the layers whose input it reads: {"eagle_ext": {"aux_layers": [..]}}',
            )


RULES = (
    aux_layers_are_stated,
    aux_layer_ids_may_be_inputs,
    aux_order_is_known,
    aux_order_is_unambiguous,
    aux_count_is_consistent,
)
