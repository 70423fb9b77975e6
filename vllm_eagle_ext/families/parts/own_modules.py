# SPDX-License-Identifier: Apache-2.0
"""Which of embeddings and head a draft has itself, and which vLLM takes from the target.

vLLM decides once, after the start's load: a draft whose files hold none gets the target's module, and so
does one whose values equal the target's. What an update brings later must not reach the target.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.families.parts.strict_weights import LoadingPlan

_MODULES = ("embed_tokens", "lm_head")


class OwnModules:
    """The embeddings and the head as the draft was built, before vLLM shares any."""

    def __init__(self, draft: Any, plan: LoadingPlan) -> None:
        """Tell vLLM what the files hold, also where their weights arrive only after the start."""
        self._draft = weakref.ref(draft)
        self._built = {part: weakref.ref(self._now(part)) for part in _MODULES}
        for part in _MODULES:
            if any(name.startswith(f"{part}.") for name in plan.required):
                setattr(draft, f"has_own_{part}", True)
            elif not any(name.startswith(f"{part}.") for name in plan.optional):
                setattr(draft, f"has_own_{part}", False)

    def _now(self, part: str) -> torch.nn.Module:
        draft = self._draft()
        module: torch.nn.Module = getattr(draft if part == "lm_head" else draft.model, part)  # type: ignore[union-attr]
        return module

    def shared(self, name: str) -> torch.nn.Module | None:
        """Return the target's module to which a tensor would go, None if it goes to the draft's own.

        Args:
            name: canonical.
        """
        part = name.partition(".")[0]
        if part not in _MODULES or self._now(part) is self._built[part]():
            return None
        return self._now(part)

    def tell_dummies_apart(self) -> None:
        """Change the draft's dummy values: vLLM's follow from the shape, so that they equal the target's
        dummy values, and vLLM would share the target's modules."""
        for part in _MODULES:
            if getattr(self._draft(), f"has_own_{part}", False):
                for parameter in self._now(part).parameters():
                    if parameter.dtype.itemsize > 1 and parameter.is_floating_point():
                        parameter.data.neg_()

    def require_same(self, name: str, tensor: torch.Tensor, module: torch.nn.Module) -> None:
        """Refuse other values than the target's for a module that is the target's.

        Raises:
            UnsupportedDraftError: the values differ.
        """
        if name.endswith(".weight") and hasattr(_plain(module), "weight") and _holds(module, tensor):
            return
        raise UnsupportedDraftError(
            field=f"{name} of the weight update",
            value="other than the target's",
            allowed="the target's values: the draft's own were the same at the start, or were not known "
            "then, so that the draft computes with the target's",
            remedy="leave the tensor out of the update, or start the engine again with "
            '`"draft_load_config": {"load_format": "dummy"}` in speculative_config and a draft in '
            "safetensors files, which then keeps its own",
        )


def _plain(module: Any) -> Any:
    return module.base_layer if isinstance(module, BaseLayerWithLoRA) else module


def _holds(module: Any, tensor: torch.Tensor) -> bool:
    """Compare this rank's rows [V / ranks, H] of a whole tensor [V, H]."""
    module = _plain(module)
    weight: torch.Tensor = module.weight
    if weight.is_meta:  # while vLLM reloads layer by layer, which puts the old ones back at the end
        kept = get_layerwise_info(module).kernel_tensors
        assert kept is not None
        weight = kept[0]["weight"]
    rows = module.shard_indices
    mine = tensor[rows.org_vocab_start_index : rows.org_vocab_end_index]
    return torch.equal(weight[: len(mine)], mine.to(weight))
