# SPDX-License-Identifier: Apache-2.0
"""From the layer ids of a draft's config to those of vLLM.

Here as in vLLM, aux layer i is the input of target layer i, the residual stream that enters it: 0 is the
embeddings, N the output of the last layer before the final norm. Training frameworks write either these
ids or those of the layers whose output is read, one less, and no key says which; the rules below are
tried in order.

Where ids are listed out of order, the blocks of `fc` follow the list if the states of training came
from Hugging Face (`hidden_states[i]` for each i of the list: z-lab, AngelSlim), and the layers if an
engine collected them on its way through the target (vLLM for speculators; SGLang; hooks of ModelOpt).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.draft.findings import Problem, key_problem
from vllm_eagle_ext.draft.registry import id_places
from vllm_eagle_ext.draft.spec import AuxLayers, BlockOrder, IdConvention, Override

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
OUTPUT_IDS_KEY = "target_layer_ids"
ANGELSLIM_KEY = "aux_hidden_states_layer_ids"
# Keys next to the ids in `eagle_config`; trainers that write them collect the states layer by layer.
_OF_HOOKS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm")

LIST_LAYERS = 'list the layers whose input it reads: {"eagle_ext": {"aux_layers": [..]}}'
_SET_OPTION = 'set {"eagle_ext": {"aux_layers": "input" | "output" | [..]}}'


def vllm_keys(layers: AuxLayers) -> dict[str, Any]:
    """Return the keys in which vLLM's runners and its EAGLE-3 classes look for aux layers first."""
    return {IDS_KEY: list(layers.layer_ids), "num_aux_hidden_states": len(layers.layer_ids)}


def default_layer_ids(num_target_layers: int) -> tuple[int, int, int]:
    """Return EAGLE-3's own capture set."""
    return (2, num_target_layers // 2, num_target_layers - 3)


def resolve_aux_layers(
    config: Mapping[str, Any],
    *,
    num_target_layers: int,
    convention: IdConvention,
    is_speculators: bool = False,
    override: Override = "auto",
) -> AuxLayers | list[Problem]:
    """Return the aux layers of a draft, or why none can be had.

    Args:
        config: the draft's config.json; of a speculators draft, the flattened one.
        num_target_layers: N.
        convention: of the draft's family.
        override: the option `aux_layers`.
    """
    # The lists that the config states.
    lists = [(name, _ids(ids)) for name, ids in _places(config).items() if ids not in (None, [])]
    for name, ids in lists:
        if ids is None and isinstance(override, str):
            return [_malformed(name, _places(config)[name])]
    given = {name: ids for name, ids in lists if ids is not None}
    # Which of them counts, and what its ids mean.
    chosen = _choose(given, num_target_layers, convention, is_speculators, override)
    if isinstance(chosen, Problem):
        return [chosen]
    listed, rule, published = chosen
    # vLLM captures layers in ascending order, which the blocks of fc may not follow.
    by_id = tuple(sorted(range(len(listed)), key=listed.__getitem__))  # places in the list
    ascending = tuple(range(len(listed)))
    blocks = None if by_id == ascending else _block_order(config, given, is_speculators, override)
    layers = AuxLayers(
        layer_ids=tuple(listed[k] for k in by_id),
        rule=rule,
        published_ids=published,
        order=by_id if blocks and blocks.follows == "list" else ascending,
        listed=listed,
        blocks=blocks,
    )
    return _out_of_range(layers, num_target_layers) or layers


def _block_order(
    config: Mapping[str, Any], given: Mapping[str, object], is_speculators: bool, override: Override
) -> BlockOrder:
    # The option lists the blocks, and AngelSlim captures by its list.
    if not isinstance(override, str) or (ANGELSLIM_KEY in given and not is_speculators):
        return BlockOrder("list")
    # speculators trains on states that vLLM has captured layer by layer; so collects EAGLE-3's default.
    if is_speculators or not given:
        return BlockOrder("layers")
    if any(key.endswith(OUTPUT_IDS_KEY) for key in given):
        return BlockOrder("list", f"z-lab, whose key {OUTPUT_IDS_KEY} is, captures by this list")
    nested = config.get("eagle_config")
    if isinstance(nested, Mapping) and any(mark in nested for mark in _OF_HOOKS):
        return BlockOrder("layers")
    return BlockOrder("layers", f"trainers that write {IDS_KEY} collect the states layer by layer")


def _places(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every key that names layers, in the order of the rules."""
    return {
        IDS_KEY: config.get(IDS_KEY),
        "aux_hidden_state_layer_ids": config.get("aux_hidden_state_layer_ids"),
        ANGELSLIM_KEY: config.get(ANGELSLIM_KEY),
        **{place: _nested(config, *place.split(".")) for place in id_places()},
        OUTPUT_IDS_KEY: config.get(OUTPUT_IDS_KEY),
        f"dspark_{OUTPUT_IDS_KEY}": config.get(f"dspark_{OUTPUT_IDS_KEY}"),
    }


def _nested(config: Mapping[str, Any], block: str, key: str) -> Any:
    inner = config.get(block)
    return inner.get(key) if isinstance(inner, Mapping) else None


def _ids(value: object) -> tuple[int, ...] | None:
    is_list = isinstance(value, list) and all(type(i) is int for i in value)
    return tuple(value) if is_list else None  # type: ignore[arg-type]


_Choice = tuple[tuple[int, ...], str, tuple[int, ...] | None]


def _choose(
    given: Mapping[str, tuple[int, ...]],
    num_target_layers: int,
    convention: IdConvention,
    is_speculators: bool,
    override: Override,
) -> _Choice | Problem:
    if not isinstance(override, str):
        first = next(iter(given.values()), None)
        return tuple(override), "option aux_layers lists the layers whose input is read", first
    if not given:
        if convention.is_required:
            return _malformed(convention.places[0], None)
        return (
            default_layer_ids(num_target_layers),
            "the config names no layers, so EAGLE-3's default 2, N//2, N-3",
            None,
        )
    readings = {
        name: _by_rules(name, ids, num_target_layers, convention, is_speculators, override)
        for name, ids in given.items()
    }
    name, (layer_ids, rule) = next(iter(readings.items()))
    for other, (other_ids, _) in readings.items():
        # The nested list may be either kind, so that a top-level one says what it means.
        is_nested = other == f"eagle_config.{IDS_KEY}"
        if layer_ids != other_ids and not (is_nested and layer_ids == given[other]):
            return key_problem(
                f"{name} and {other}",
                (list(given[name]), list(given[other])),
                allowed="lists that mean the same layers",
                remedy=LIST_LAYERS,
            )
    return layer_ids, rule, given[name]


def _by_rules(
    name: str,
    ids: tuple[int, ...],
    num_target_layers: int,
    convention: IdConvention,
    is_speculators: bool,
    override: str,
) -> tuple[tuple[int, ...], str]:
    outputs = tuple(i + 1 for i in ids)
    # The option decides, then a key that has one meaning.
    if override == "input":
        return ids, "option aux_layers says the ids name layer inputs"
    if override == "output":
        return outputs, "option aux_layers says the ids name layer outputs"
    if name.endswith(OUTPUT_IDS_KEY):
        return outputs, f"{name} names the layers whose output is read, the input of layer id + 1"
    if name == ANGELSLIM_KEY:
        return (
            outputs,
            f"{name} is AngelSlim's and names layer outputs, which is the input of layer id + 1",
        )
    # Other keys mean what their format, the target's depth or their place says.
    if is_speculators:
        return ids, "ids of the speculators format name layers whose input is read"
    if num_target_layers in ids:
        return (
            ids,
            f"the ids contain N={num_target_layers}, so they name inputs: N is the last layer's output",
        )
    if "." not in name:
        return ids, "ids at top level name layers whose input is read, as in vLLM"
    without = convention.names_inputs_without
    if without is not None and without not in ids:
        return ids, f"nested ids of an MLA draft without layer {without} name layers whose input is read"
    rule = "ids nested in eagle_config name the layers whose output is read, which is the input of layer"
    return outputs, f"{rule} id + 1"


def _malformed(name: str, value: object) -> Problem:
    return key_problem(
        name,
        value,
        allowed="a list of integers",
        remedy=f"correct the file, or {LIST_LAYERS}",
    )


def _out_of_range(layers: AuxLayers, num_target_layers: int) -> list[Problem]:
    """Find ids beyond the target's layers, ids that are repeated, and a list of none.

    vLLM drops repetitions, and a layer beyond the last never fires.
    """
    layer_ids = layers.layer_ids
    problems = []
    if any(not 0 <= b <= num_target_layers for b in layer_ids):
        problems.append(f"layer ids 0 to N={num_target_layers}")
    if len(set(layer_ids)) < len(layer_ids):
        problems.append("each layer once")
    if not layer_ids:
        problems.append("at least one layer")
    if not problems:
        return []
    return [
        Problem(
            field="aux layers of the draft",
            value=list(layer_ids),
            allowed=" and ".join(problems),
            remedy=f"this target has {num_target_layers} layers: serve the draft with the target it was "
            f"trained for; if this is the one, the rule ({layers.rule}) is wrong for it: {_SET_OPTION}",
        )
    ]
