"""One change to a draft, to its config or its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import LAYER, Draft

Change = Callable[[Draft], object]
IDS = "eagle_config.eagle_aux_hidden_state_layer_ids"
TOP_IDS = "eagle_aux_hidden_state_layer_ids"
ANGELSLIM = "aux_hidden_states_layer_ids"
ATTENTION = "midlayer.self_attn"
IGNORE = "quantization_config.ignore"


def _holder(draft: Draft, path: str) -> tuple[dict[str, Any], str]:
    *blocks, name = path.split(".")
    holder = draft.config
    for block in blocks:
        holder = holder.setdefault(block, {})
    return holder, name


def key(path: str, value: object) -> Change:
    def change(draft: Draft) -> None:
        holder, name = _holder(draft, path)
        holder[name] = value

    return change


def no_key(path: str) -> Change:
    def change(draft: Draft) -> None:
        holder, name = _holder(draft, path)
        del holder[name]

    return change


def tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(draft: Draft) -> None:
        draft.tensors[name] = make(draft.tensors[name].clone()).contiguous()

    return change


def more(name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Change:
    return lambda draft: draft.tensors.update({name: torch.ones(shape, dtype=dtype)})


def no_tensor(name: str) -> Change:
    return lambda draft: draft.tensors.pop(name)


def entry(name: str, index: int, value: float) -> Change:
    def put(old: torch.Tensor) -> torch.Tensor:
        old[index] = value
        return old

    return tensor(name, put)


def twice(name: str, dim: int = 0) -> Change:
    return tensor(name, lambda old: torch.cat([old, old], dim))


def as_eagle_1(draft: Draft) -> None:
    """A published EAGLE-1 draft: fc reads the embedding and one state, and no norm follows."""
    width = draft.config["hidden_size"]
    parts = ("norm", "fc", "hidden_norm", "input_layernorm")
    for name in [name for name in draft.tensors if {*parts} & {*name.split(".")}]:
        del draft.tensors[name]
    for name in ("lm_head.weight", "d2t", "t2d"):
        del draft.tensors[name]
    for name in "qkv":
        tensor(f"{ATTENTION}.{name}_proj.weight", lambda old: old[:, :width])(draft)
    draft.tensors |= {"fc.weight": torch.ones(width, 2 * width), "fc.bias": torch.ones(width)}
    draft.tensors["embed_tokens.weight"] = torch.ones(draft.config["vocab_size"], width)


def reads_a_wider_target(draft: Draft) -> None:
    draft.config["target_hidden_size"] = 2 * HIDDEN
    twice("fc.weight", 1)(draft)


# A draft of three aux layers as SpecForge's configs for EAGLE 3.1 have it.
POST_NORM = (
    key("fc_norm", True),
    key("norm_output", True),
    *(more(f"fc_norm.{k}.weight", HIDDEN) for k in range(3)),
)


def as_speculators(draft: Draft) -> None:
    """A published DFlash draft in the speculators format."""
    dflash = draft.config.pop("dflash_config")
    root = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [i + 1 for i in dflash["target_layer_ids"]],
        "mask_token_id": dflash["mask_token_id"],
        "block_size": draft.config.pop("block_size"),
    }
    draft.config = root | {LAYER: draft.config}


def as_qwen3(draft: Draft) -> None:
    draft.config |= {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    for name in "qk":
        more(f"{ATTENTION}.{name}_norm.weight", 32)(draft)


def plain(name: str) -> Change:
    """A quantised weight as it was before."""

    def change(draft: Draft) -> None:
        scale = draft.tensors.pop(f"{name}_scale")
        draft.tensors[name] = (draft.tensors[name] * scale).bfloat16()

    return change


def quantised_fc(draft: Draft) -> None:
    draft.config["quantization_config"]["ignore"] = ["lm_head"]
    draft.tensors["fc.weight"] = (100 * draft.tensors["fc.weight"]).to(torch.int8)
    draft.tensors["fc.weight_scale"] = torch.full((HIDDEN, 1), 0.01)
