# SPDX-License-Identifier: Apache-2.0
"""Walks a text as an engine does: what a reference drafts after any of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from vllm_eagle_ext.checkpoint.attention import LayerAttention
from vllm_eagle_ext.measure.reference.dflash import DFlashReference
from vllm_eagle_ext.measure.reference.eagle3 import ReferenceDraft

_BOTH_WAYS = (LayerAttention(None, False),) * 2


class ReferenceDrafter(Protocol):
    """A reference: what it makes of a whole text, and its draft from one row of it."""

    def true_rows(self, tokens: Sequence[int], aux: Sequence[torch.Tensor]) -> Any: ...

    def draft(self, start: int, k: int, rows: Any) -> ReferenceDraft: ...


@dataclass(frozen=True)
class DFlashWalk:
    """One block per draft."""

    reference: DFlashReference

    @classmethod
    def load(
        cls,
        folder: Path,
        target: PreTrainedModel,
        layers: Sequence[LayerAttention] = _BOTH_WAYS,
        kind: type[DFlashReference] = DFlashReference,
    ) -> DFlashWalk:
        """Load a draft that shares the target's embeddings and head."""
        causal, windows = [one.causal for one in layers], [one.window for one in layers]
        shared = embeddings_and_head(target)
        return cls(kind.load(folder, *shared, causal=causal, windows=windows))

    def true_rows(
        self, tokens: Sequence[int], aux: Sequence[torch.Tensor]
    ) -> tuple[Sequence[int], torch.Tensor]:
        return tokens, self.reference.context(aux)

    @torch.inference_mode()
    def draft(self, start: int, k: int, rows: tuple[Sequence[int], torch.Tensor]) -> ReferenceDraft:
        """Draft the block whose anchor is the token after row `start`; it sees rows up to `start`."""
        (tokens, context), anchor = rows, start + 1
        scores, ids = self.reference.choices(context[:anchor], tokens[anchor], k)
        best = scores.topk(2)
        margins = best.values[:, 0] - best.values[:, 1]
        drafted = ids.gather(1, best.indices[:, :1])[:, 0]
        return ReferenceDraft(drafted.tolist(), margins.tolist(), best.values[:, 0].tolist())


def embeddings_and_head(target: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    embeddings: Any = target.get_input_embeddings()
    head: Any = target.get_output_embeddings()
    return embeddings.weight.data, head.weight.data


def accepted_length(draft: Sequence[int], wanted: Sequence[int]) -> int:
    count = 0
    for guess, token in zip(draft, wanted, strict=False):
        if guess != token:
            break
        count += 1
    return count
