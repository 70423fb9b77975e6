"""Breaks a valid draft in every way that a checker could see, one thing at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import TARGET, Draft, valid_draft

Change = tuple[str, "Mutant"]
DFLASH = ("dflash", "dflash-speculators")
SPECULATORS = ("speculators", "p-eagle", "dflash-speculators")
BLOCKS = ("eagle_config", "dflash_config", "transformer_layer_config", "rope_parameters")


@dataclass
class Mutant:
    """`draft` with one thing changed, or its surroundings."""

    family: str
    draft: Draft
    operator: str = ""
    label: str = ""
    target: dict[str, Any] = field(default_factory=lambda: dict(TARGET))
    max_model_len: int = 512
    runner: str | None = "v1"
    knows_vllm: bool = True  # which model types it can read
    files: dict[str, str] = field(default_factory=dict)  # beside the draft's
    target_files: dict[str, str] = field(default_factory=dict)
    as_bin: bool = False
    parallel_drafting: bool = True

    @property
    def differs_in_a_name_only(self) -> bool:
        return self.operator in ("rename tensor", "alias tensor")


def fresh(family: str) -> Mutant:
    return Mutant(family, valid_draft(family))


def mutants(family: str) -> Iterator[Mutant]:
    for operator, mutate in OPERATORS.items():
        for label, mutant in mutate(family):
            mutant.operator, mutant.label = operator, label
            yield mutant


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
        stated = bool(mutant.draft.config.get(name))
        mutant.draft.config[name] = stated
        mutant.draft.config["eagle_config"] = {
            **mutant.draft.config.get("eagle_config", {}),
            name: not stated,
        }
        yield f"{name} contradicted", mutant


def layer_ids(family: str) -> Iterator[Change]:
    key = {"dflash": "target_layer_ids", "dflash-speculators": "aux_hidden_state_layer_ids"}.get(
        family, "eagle_aux_hidden_state_layer_ids"
    )
    for name, change in (
        ("repeated", lambda ids: [*ids[:-1], ids[0]]),
        ("beyond N", lambda ids: [*ids[:-1], 40]),
        ("negative", lambda ids: [-3, *ids[1:]]),
        ("one fewer", lambda ids: ids[:-1]),
        ("one more", lambda ids: [*ids, 7]),
        ("texts", lambda ids: [str(i) for i in ids]),
        ("floats", lambda ids: [float(i) for i in ids]),
        ("in another order", lambda ids: [*ids[1:], ids[0]]),  # understood
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
    for model_type in ("qwen3_next", "deepseek_v3", "no_such_type", "olmo2"):
        mutant = fresh(family)
        mutant.draft.config["model_type"] = model_type
        if "speculators_model_type" not in mutant.draft.config:
            mutant.knows_vllm = model_type != "olmo2"  # one that it does know
            yield f"model_type {model_type}", mutant
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


def drop_tensor(family: str) -> Iterator[Change]:
    for name in valid_draft(family).tensors:
        mutant = fresh(family)
        del mutant.draft.tensors[name]
        yield name, mutant


def rename_tensor(family: str) -> Iterator[Change]:
    for name in valid_draft(family).tensors:
        mutant = fresh(family)
        stem, dot, rest = name.partition(".")
        mutant.draft.tensors[f"{stem}_{dot}{rest}"] = mutant.draft.tensors.pop(name)
        yield name, mutant


def alias_tensor(family: str) -> Iterator[Change]:
    """Published spellings that mean the same."""
    mutant = fresh(family)
    mutant.draft.tensors = {f"model.{n}": tensor for n, tensor in mutant.draft.tensors.items()}
    yield "all under model.", mutant


def add_tensor(family: str) -> Iterator[Change]:
    names = [n for n in valid_draft(family).tensors if n.endswith("proj.weight") or n == "fc.weight"]
    for name in names:
        mutant = fresh(family)
        rows = len(mutant.draft.tensors[name])
        mutant.draft.tensors[name.replace(".weight", ".bias")] = torch.ones(rows).bfloat16()
        yield name.replace(".weight", ".bias"), mutant
    for name in ("fc_norm.9.weight", "midlayer.self_attn.gate.weight", "extra"):
        mutant = fresh(family)
        mutant.draft.tensors[name] = torch.ones(63).bfloat16()
        yield name, mutant
    if "d2t" not in valid_draft(family).tensors:
        mutant = fresh(family)
        mutant.draft.tensors["d2t"] = torch.zeros(128, dtype=torch.long)
        yield "d2t", mutant


def reshape_tensor(family: str) -> Iterator[Change]:
    for name, tensor in valid_draft(family).tensors.items():
        changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "taller": lambda t: torch.cat([t, t]),
            "shorter": lambda t: t[:-1].clone(),
        }
        if tensor.ndim == 2:
            changes["wider"] = lambda t: torch.cat([t, t], dim=1)
            if tensor.shape[0] != tensor.shape[1]:
                changes["transposed"] = lambda t: t.T.contiguous()
        for change_name, change in changes.items():
            mutant = fresh(family)
            mutant.draft.tensors[name] = change(mutant.draft.tensors[name])
            yield f"{name} {change_name}", mutant


def retype_tensor(family: str) -> Iterator[Change]:
    for name, tensor in valid_draft(family).tensors.items():
        for dtype in (torch.int32, torch.bool, torch.float8_e4m3fn):
            if dtype == torch.float8_e4m3fn and not tensor.is_floating_point():
                continue
            if (name, dtype) == ("d2t", torch.int32) or (name, dtype) == ("t2d", torch.bool):
                continue  # spellings that publishers use
            mutant = fresh(family)
            mutant.draft.tensors[name] = mutant.draft.tensors[name].to(dtype)
            yield f"{name} as {dtype}", mutant
    for name in ("d2t", "t2d"):
        mutant = fresh(family)
        if name in mutant.draft.tensors:
            mutant.draft.tensors[name] = mutant.draft.tensors[name].float()
            yield f"{name} as float", mutant


def spoil_value(family: str) -> Iterator[Change]:
    """One value that is not finite, in each vector and in one matrix of each shape."""
    shapes = set()
    for name, tensor in valid_draft(family).tensors.items():
        if not tensor.is_floating_point() or (tensor.ndim > 1 and tensor.shape in shapes):
            continue
        shapes.add(tensor.shape)
        for value in ("nan", "inf") if tensor.ndim == 1 else ("nan",):
            mutant = fresh(family)
            mutant.draft.tensors[name].view(-1)[-1] = float(value)
            yield f"{name} {value}", mutant


def vocabulary_map(family: str) -> Iterator[Change]:
    if "d2t" not in valid_draft(family).tensors:
        return

    def swapped(d2t: torch.Tensor) -> torch.Tensor:
        ids = d2t + torch.arange(len(d2t))
        ids[[0, 1]] = ids[[1, 0]]
        return ids - torch.arange(len(d2t))

    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "repeated": lambda d: torch.cat([d[:1], d[:1] - 1, d[2:]]),
        "swapped": swapped,
        "negative": lambda d: d - 200,
        "beyond V": lambda d: d + 200,
        "zeros": torch.zeros_like,  # a map, but of other tokens
        "target ids": lambda d: d + torch.arange(len(d)),  # understood
    }
    for name, change in changes.items():
        mutant = fresh(family)
        mutant.draft.tensors["d2t"] = change(mutant.draft.tensors["d2t"])
        yield f"d2t {name}", mutant
    for name, index in (("one more", False), ("one fewer", True)):
        mutant = fresh(family)
        mask = mutant.draft.tensors["t2d"]
        mask[int((mask == index).nonzero()[0])] = not index
        yield f"t2d {name}", mutant


def surroundings(family: str) -> Iterator[Change]:
    """Another target, another request, other files beside the draft."""
    for key, value in (("vocab_size", 200), ("hidden_size", 96), ("rope_theta", 5e5)):
        mutant = fresh(family)
        mutant.target[key] = value
        yield f"target {key}", mutant
    mutant = fresh(family)
    mutant.max_model_len = 4096
    yield "max_model_len", mutant
    mutant = fresh(family)
    mutant.draft.k += 5
    yield "K", mutant
    mutant = fresh(family)
    mutant.runner = "v2"
    yield "V2 runner", mutant
    mutant = fresh(family)
    mutant.runner = None
    yield "runner not known", mutant
    mutant = fresh(family)
    mutant.as_bin = True
    yield ".bin", mutant
    mutant = fresh(family)
    mutant.parallel_drafting = False
    yield "no parallel drafting", mutant
    mutant = fresh(family)
    tokens = '{"model": {"vocab": {"a": 0, "b": 1}}}'
    mutant.files = {"tokenizer.json": tokens.replace("1", "2")}
    mutant.target_files = {"tokenizer.json": tokens}
    yield "tokenizer", mutant


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
    }
    if family in DFLASH:
        extra["block of 1"] = {"block_size": 1}
    if family == "dflash":
        extra |= {
            "nested block_size": {"dflash_config": {"block_size": 9}},
            "second mask token": {"mask_token_id": 3},
            "last boundary": {"dflash_config": {"target_layer_ids": [1, 3, 7]}},
        }
    for name, keys in extra.items():
        mutant = fresh(family)
        for key, value in keys.items():
            old = mutant.draft.config.get(key)
            both = isinstance(old, dict) and isinstance(value, dict)
            mutant.draft.config[key] = {**old, **value} if both else copy.deepcopy(value)
        yield name, mutant


def quantisation(family: str) -> Iterator[Change]:
    """Of the one family that is quantised: what its config leaves out, and what its files lack."""
    if family != "quantised":
        return
    for name, ignore in (("local name", ["lm_head", "fc"]), ("nothing", []), ("other module", ["x"])):
        mutant = fresh(family)
        mutant.draft.config["quantization_config"]["ignore"] = ignore
        yield f"ignore {name}", mutant
    mutant = fresh(family)
    name = "midlayer.mlp.down_proj.weight"
    scale = mutant.draft.tensors.pop(f"{name}_scale")
    mutant.draft.tensors[name] = (mutant.draft.tensors[name] * scale).bfloat16()
    yield "one module plain", mutant
    mutant = fresh(family)
    ids = mutant.draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    mutant.draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids[::-1]
    mutant.draft.config["quantization_config"]["ignore"] = ["lm_head"]
    fc = mutant.draft.tensors["fc.weight"].float()
    mutant.draft.tensors["fc.weight_scale"] = fc.abs().amax(dim=1, keepdim=True) / 127
    mutant.draft.tensors["fc.weight"] = (fc * 127).to(torch.int8)
    yield "fc quantised, ids out of order", mutant
    mutant = fresh(family)
    mutant.draft.config["quantization_config"]["ignore"] = ["lm_head", "re:.*fc$"]
    yield "ignore by a pattern", mutant  # understood


OPERATORS: dict[str, Callable[[str], Iterator[Change]]] = {
    "drop key": drop_key,
    "null key": null_key,
    "wrong type": wrong_type,
    "number": number,
    "flag": flag,
    "layer ids": layer_ids,
    "identity": identity,
    "other keys": other_keys,
    "drop tensor": drop_tensor,
    "rename tensor": rename_tensor,
    "alias tensor": alias_tensor,
    "add tensor": add_tensor,
    "reshape tensor": reshape_tensor,
    "retype tensor": retype_tensor,
    "spoil value": spoil_value,
    "vocabulary map": vocabulary_map,
    "quantisation": quantisation,
    "surroundings": surroundings,
}
