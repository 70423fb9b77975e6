"""Breaks the config: any key of it, and the keys that have meanings of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import valid_draft
from tests.support.mutations.mutant import DFLASH, SPECULATORS, ZLAB, Change, Mutant, fresh

# Keys of a second head beside those that the draft has.
SECOND_HEADS: dict[str, dict[str, Any]] = {
    "dflash2": {"second selector": {"selector_rank": 5}, "reduced": {"draft_vocab_size": 96}},
    "dspark": {
        "second Markov head": {"markov_rank": 3},
        "gated Markov head": {"dflash_config": {"markov_head_type": "gated"}},
        "many candidates": {"dspark_draft_topk": 999},
        "no anchor": {"dspark_bonus_anchor": True, "sample_from_anchor": True},
        "convolutions": {"dflash_config": {"dspark_backbone_conv_enabled": True}},
    },
}
BLOCKS = ("eagle_config", "dflash_config", "transformer_layer_config", "rope_parameters")


def _holders(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config and its blocks, by dotted prefix."""
    yield "", config
    for block in BLOCKS:
        inner = config.get(block)
        if isinstance(inner, dict):
            for prefix, holder in _holders(inner):
                yield f"{block}.{prefix}", holder


def _keys(family: str, *kinds: type) -> Iterator[tuple[str, int, str]]:
    """Every key of the config whose value is of one of the kinds: label, place of its holder, key."""
    for index, (prefix, holder) in enumerate(_holders(valid_draft(family).config)):
        for key, value in holder.items():
            if type(value) in kinds and key not in ("torch_dtype", *BLOCKS):
                yield prefix + key, index, key


def _with_key(family: str, place: int, key: str, change: Callable[[Any], Any]) -> Mutant:
    mutant = fresh(family)
    holder = [holder for _, holder in _holders(mutant.draft.config)][place]
    holder[key] = change(holder[key])
    return mutant


def drop_key(family: str) -> Iterator[Change]:
    for label, place, key in _keys(family, int, float, bool, str, list):
        mutant = fresh(family)
        del [holder for _, holder in _holders(mutant.draft.config)][place][key]
        yield label, mutant


def null_key(family: str) -> Iterator[Change]:
    for label, place, key in _keys(family, int, float, bool, str, list):
        yield label, _with_key(family, place, key, lambda _: None)


def wrong_type(family: str) -> Iterator[Change]:
    for label, place, key in _keys(family, int, float, bool, list):
        yield f"{label} as text", _with_key(family, place, key, str)
    for label, place, key in _keys(family, int, float):
        yield f"{label} as true", _with_key(family, place, key, lambda _: True)


def number(family: str) -> Iterator[Change]:
    for label, place, key in _keys(family, int):
        for name, change in (
            ("0", lambda _: 0),
            ("negative", lambda v: -v),
            ("one more", lambda v: v + 1),
            ("twice", lambda v: 2 * v),
        ):
            yield f"{label} {name}", _with_key(family, place, key, change)
    for label, place, key in _keys(family, float):
        for name, change in (
            ("0", lambda _: 0.0),
            ("negative", lambda v: -v),
            ("nan", lambda _: float("nan")),
            ("x1000", lambda v: 1000 * v),
        ):
            yield f"{label} {name}", _with_key(family, place, key, change)


def flag(family: str) -> Iterator[Change]:
    for label, place, key in _keys(family, bool):
        yield f"{label} flipped", _with_key(family, place, key, lambda v: not v)
    for name in ("fc_norm", "norm_output", "norm_before_fc", "attention_bias", "attn_output_gate"):
        mutant = fresh(family)
        if not mutant.draft.config.get(name):
            mutant.draft.config[name] = True
            yield f"{name} set", mutant
    if family == "post-norm":
        mutant = fresh(family)
        mutant.draft.config["norm_before_fc"] = True
        mutant.draft.tensors["input_norm.weight"] = torch.ones(5 * HIDDEN).bfloat16()
        yield "both input norms, with their weights", mutant
    if family in SPECULATORS:
        mutant = fresh(family)
        mutant.draft.config["sliding_window_non_causal"] = False
        yield "sliding_window_non_causal false", mutant
    for name in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"):
        mutant = fresh(family)
        on = bool(mutant.draft.config.get(name))
        mutant.draft.config[name] = on
        mutant.draft.config["eagle_config"] = {
            **mutant.draft.config.get("eagle_config", {}),
            name: not on,
        }
        yield f"{name} contradicted", mutant


def layer_ids(family: str) -> Iterator[Change]:
    key = "eagle_aux_hidden_state_layer_ids"
    if family in DFLASH:
        key = "target_layer_ids" if family in ZLAB else "aux_hidden_state_layer_ids"
    for name, change in (
        ("repeated", lambda ids: [*ids[:-1], ids[0]]),
        ("beyond N", lambda ids: [*ids[:-1], 40]),
        ("negative", lambda ids: [-3, *ids[1:]]),
        ("one fewer", lambda ids: ids[:-1]),
        ("one more", lambda ids: [*ids, 7]),
        ("texts", lambda ids: [str(i) for i in ids]),
        ("floats", lambda ids: [float(i) for i in ids]),
        ("in another order", lambda ids: [*ids[1:], ids[0]]),  # of dflash, by its list; understood
    ):
        mutant = fresh(family)
        for _, holder in _holders(mutant.draft.config):
            if isinstance(holder.get(key), list):
                holder[key] = change(holder[key])
                yield name, mutant
    if family not in (*DFLASH, "no_aux"):
        mutant = fresh(family)
        mutant.draft.config[key] = [0, 1, 7]
        if family not in SPECULATORS:
            yield "contradicted at top level", mutant
        mutant = fresh(family)
        mutant.draft.config["num_aux_hidden_states"] = 4
        yield "miscounted", mutant
        if family not in SPECULATORS:
            mutant = fresh(family)
            del mutant.draft.config["eagle_config"]
            mutant.draft.config["use_aux_hidden_state"] = False
            yield "use_aux_hidden_state false", mutant
    if family in ("native", "qwen3", "post-norm"):
        mutant = fresh(family)
        ids = mutant.draft.config.pop("eagle_config")[key]
        mutant.draft.config["aux_hidden_states_layer_ids"] = ids
        yield "under AngelSlim's key", mutant  # understood
    if family in ("native", "qwen3", "norm_before_fc"):
        mutant = fresh(family)
        mutant.draft.config["eagle_config"][key] = [2, 4, 5]
        yield "2, N//2, N-3 in a nested list", mutant


def identity(family: str) -> Iterator[Change]:
    """Architecture, model type, method."""
    for architecture in ("LlamaForCausalLMEagle3Gated", "NoSuchDraftModel", ""):
        mutant = fresh(family)
        mutant.draft.config["architectures"] = [architecture]
        if "speculators_model_type" not in mutant.draft.config:
            yield f"architecture {architecture!r}", mutant
    mutant = fresh(family)
    mutant.draft.config["model_type"] = "deepseek_v3"
    if "speculators_model_type" not in mutant.draft.config:
        yield "model_type deepseek_v3", mutant
    mutant = fresh(family)
    mutant.draft.method = "dflash" if mutant.draft.method == "eagle3" else "eagle3"
    yield "method of the other kind", mutant
    if "speculators_model_type" in mutant.draft.config:
        mutant = fresh(family)
        mutant.draft.config["speculators_model_type"] = "no_such_type"
        yield "speculators type", mutant
        mutant = fresh(family)
        mutant.draft.config["transformer_layer_config"]["model_type"] = "gemma3"
        yield "speculators layer type", mutant


def other_keys(family: str) -> Iterator[Change]:
    """Keys that a valid draft of the family does not have."""
    layers = {"sliding": ["sliding_attention"], "too many": ["full_attention"] * 9}
    for name, types in layers.items():
        mutant = fresh(family)
        mutant.draft.config["layer_types"] = types
        yield f"layer_types {name}", mutant
    extra: dict[str, dict[str, Any]] = {
        "quantisation": {
            "quantization_config": {"quant_method": "fp8", "ignore": ["model.layers.0.self_attn.q_proj"]}
        },
        "tied": {"tie_word_embeddings": True},
        "activation": {"hidden_act": "gelu"},
        "second rope_theta": {"rope_scaling": {"rope_theta": 77.0}},
        "logit_scale": {"logit_scale": 0},
        "target_hidden_size": {"target_hidden_size": 96},
        "nested gate_layout": {"eagle_config": {"gate_layout": "concat"}},
        "sampled anchor": {"sample_from_anchor": True},
        "no aux": {"use_aux_hidden_state": False},
        "older bias": {"bias": True},
        "not causal": {"is_causal": False},
        "deeper target": {"num_target_layers": 40},
        "multiplier": {"residual_multiplier": 0.5},
        "rope of no kind": {"rope_scaling": {"rope_type": "hope", "factor": 2.0}},
        "logits rescaled": {"output_multiplier": 2.0},
        "unknown factor": {"feature_scale": 2.0},
    }
    if family in DFLASH:
        extra["block of 1"] = {"block_size": 1}
    extra |= SECOND_HEADS.get(family, {})
    if family in ZLAB:
        extra |= {
            "nested block_size": {"dflash_config": {"block_size": 9}},
            "second mask token": {"mask_token_id": 3},
            "last layer id": {"dflash_config": {"target_layer_ids": [1, 3, 7]}},
        }
    for name, keys in extra.items():
        mutant = fresh(family)
        for key, value in keys.items():
            old = mutant.draft.config.get(key)
            both = isinstance(old, dict) and isinstance(value, dict)
            mutant.draft.config[key] = {**old, **value} if both else copy.deepcopy(value)
        yield name, mutant
