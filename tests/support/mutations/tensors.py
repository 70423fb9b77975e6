"""Breaks the tensors: names, shapes, types, values, and what quantises them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from tests.support.checkpoints import VOCAB
from tests.support.drafts import valid_draft
from tests.support.mutations.mutant import Change, fresh


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
        maps = {
            "d2t of zeros": torch.zeros(VOCAB, dtype=torch.long),  # understood
            "d2t of target ids": torch.arange(VOCAB),  # understood
            "d2t into another order": torch.arange(VOCAB).flip(0),
        }
        for label, d2t in maps.items():
            mutant = fresh(family)
            mutant.draft.tensors["d2t"] = d2t
            yield label, mutant
        mutant = fresh(family)
        mutant.draft.tensors["t2d"] = torch.arange(VOCAB) % 2 == 0
        yield "t2d in part", mutant


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


def quantisation(family: str) -> Iterator[Change]:
    """Change what the config of the one quantised family leaves out, and what its files lack."""
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
    name = "midlayer.mlp.up_proj.weight"
    scale = mutant.draft.tensors.pop(f"{name}_scale")
    mutant.draft.tensors[name] = (mutant.draft.tensors[name] * scale).bfloat16()
    yield "one of two fused modules plain", mutant
    mutant = fresh(family)
    ids = mutant.draft.config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
    mutant.draft.config["aux_hidden_states_layer_ids"] = ids[::-1]
    mutant.draft.config["quantization_config"]["ignore"] = ["lm_head"]
    fc = mutant.draft.tensors["fc.weight"].float()
    mutant.draft.tensors["fc.weight_scale"] = fc.abs().amax(dim=1, keepdim=True) / 127
    mutant.draft.tensors["fc.weight"] = (fc * 127).to(torch.int8)
    yield "fc quantised, ids out of order", mutant
    mutant = fresh(family)
    mutant.draft.config["quantization_config"]["ignore"] = ["lm_head", "re:.*fc$"]
    yield "ignore by a pattern", mutant  # understood
