# SPDX-License-Identifier: Apache-2.0
"""What all drafters share: a config that a start has resolved, and weights that all arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.model_executor.model_loader.utils import get_draft_load_config

from vllm_eagle_ext import compat
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.families.parts.kept_rows import KeptRows
from vllm_eagle_ext.families.parts.own_modules import OwnModules
from vllm_eagle_ext.families.parts.strict_weights import LoadingPlan, StrictWeights
from vllm_eagle_ext.families.resolved_marker import require_marker
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)


class ResolvedDraft(StrictWeights):
    """Stands before one of vLLM's drafter classes as a mixin, and does not change its maths.

    The parent would fill each gap of a config with a default, and each gap of the weights with
    whatever the memory held.

    Raises:
        UnsupportedDraftError: the draft's config was not resolved by this version of the package.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        marker = require_marker(vllm_config.speculative_config.draft_model_config.hf_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        compat.install_in_worker()
        self.loading_plan = LoadingPlan(**marker["weights"])
        self._own_modules = OwnModules(self, self.loading_plan)
        ids = self.loading_plan.kept_ids
        self._kept_rows = None if ids is None else KeptRows(self.lm_head, ids)  # type: ignore[attr-defined]
        self._starts_as_dummy = get_draft_load_config(vllm_config).load_format == "dummy"

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep the built head where vLLM shares the target's, and fill it from that one."""
        kept = self.__dict__.get("_kept_rows") if name == "lm_head" else None
        if kept is not None and value is not kept.head:
            kept.fill_from(value)
            value = kept.head
        super().__setattr__(name, value)

    def process_weights_after_loading(self) -> None:
        """End the start: vLLM calls this after a load of any kind, and then shares target modules."""
        if self._kept_rows is not None:  # dummy weights have no map
            self.draft_id_to_target_id.data.copy_(self._kept_rows.offsets)  # type: ignore[attr-defined]
        if self._starts_as_dummy and not self.has_started:
            self._own_modules.tell_dummies_apart()
            logger.warning(
                "The draft has dummy weights: it drafts noise until an update brings its own."
            )
        self.has_started = True

    def arranged(
        self, weights: Iterable[tuple[str, torch.Tensor]], seen: set[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        arranged = super().arranged(weights, seen)
        return arranged if self._kept_rows is None else self._kept_rows.arranged(arranged, seen)

    def is_anothers(self, name: str) -> bool:
        return self._shared(name) is not None

    def _shared(self, name: str) -> torch.nn.Module | None:
        """Return the module with the target's values that a tensor would go to."""
        kept = self._kept_rows
        if kept is not None and kept.is_filled and name.startswith("lm_head."):
            return kept.head
        return self._own_modules.shared(name)

    def for_update(
        self, weights: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        if "mask_hidden" in self.loading_plan.required:
            raise UnsupportedDraftError(
                field="weight update of a P-EAGLE draft",
                value="asked for",
                allowed="a start: vLLM computes the mask's states once, then",
                remedy="start the engine again with the new draft",
            )
        for name, tensor in weights:
            module = self._shared(name)
            if module is None:
                yield name, tensor
            else:
                self._own_modules.require_same(name, tensor, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the drafter; arguments and shapes are the drafter's own."""
        self._share_plainly()
        if self._kept_rows is not None and not getattr(self, "has_own_lm_head", False):
            self._kept_rows.require_filled()
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def _share_plainly(self) -> None:
        """Share the target's embeddings plain, as V2 does. V1 shares them together with their adapters,
        which go by the tokens of the target's batch: the draft has others. REMOVE WHEN V1's
        `_maybe_share_embeddings` shares them plain, or goes."""
        inner = self.model  # type: ignore[attr-defined]
        if isinstance(inner.embed_tokens, BaseLayerWithLoRA):
            inner.embed_tokens = inner.embed_tokens.base_layer
