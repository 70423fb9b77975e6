"""The DFlash reference as `tests.support.replay` walks a text: one block per draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.reference.dflash import DFlashReference
from tests.reference.eagle3 import Draft


@dataclass(frozen=True)
class DFlashWalk:
    reference: DFlashReference

    @classmethod
    def load(cls, folder: Path, target) -> DFlashWalk:  # type: ignore[no-untyped-def]
        """A draft of two full-attention layers, with the target's embeddings and head."""
        embed_tokens, lm_head = target.model.embed_tokens.weight.data, target.lm_head.weight.data
        layers = {"causal": [False] * 2, "windows": [None] * 2}
        return cls(DFlashReference.load(folder, embed_tokens, lm_head, **layers))

    def true_rows(
        self, tokens: Sequence[int], aux: Sequence[torch.Tensor]
    ) -> tuple[Sequence[int], torch.Tensor]:
        return tokens, self.reference.context(aux)

    @torch.inference_mode()
    def draft(self, start: int, k: int, rows: tuple[Sequence[int], torch.Tensor]) -> Draft:
        """The block whose anchor is the token behind row `start`; it sees the rows up to `start`."""
        (tokens, context), anchor = rows, start + 1
        best = self.reference.logits(context[:anchor], tokens[anchor], k).topk(2)
        margins = best.values[:, 0] - best.values[:, 1]
        return Draft(best.indices[:, 0].tolist(), margins.tolist())
