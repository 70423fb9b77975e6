"""What a draft proposes behind every row of a text, by whoever computes it, and how two of them compare.

Row P holds token t_{P+1} beside the target's state of position P, as an engine hands it over; the chain
of row P starts with the guess at t_{P+2}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

# Where the first two choices lie closer than this in logits, two fp32 computations may pick either.
NEAR_TIE = 1e-3


@dataclass(frozen=True)
class Chains:
    ids: torch.Tensor  # [rows, K], of the target's vocabulary
    firsts: torch.Tensor  # [rows, K], logits of the first choices
    margins: torch.Tensor  # [rows, K], first choice minus second

    @classmethod
    def of_logits(cls, logits: torch.Tensor, target_ids: torch.Tensor) -> Chains:
        """logits [rows, K, Vd], target_ids [Vd]."""
        best = logits.float().topk(2, dim=-1)
        margins = best.values[..., 0] - best.values[..., 1]
        return cls(target_ids[best.indices[..., 0]], best.values[..., 0], margins)

    @classmethod
    def load(cls, path: Path) -> Chains:
        return cls(**{name: torch.tensor(rows) for name, rows in json.loads(path.read_text()).items()})

    def save(self, path: Path) -> None:
        path.write_text(
            json.dumps({name: tensor.tolist() for name, tensor in vars(self).items()}) + "\n"
        )


@dataclass(frozen=True)
class Comparison:
    equal: int  # token ids
    compared: int
    near_ties: int  # left out, with what follows them in a chain
    largest: float  # difference of the first choices' logits and of margins, where ids agree

    @property
    def is_same(self) -> bool:
        return self.equal == self.compared > 20 * self.near_ties and self.largest < 1e-3

    def __str__(self) -> str:
        return f"{self.equal}/{self.compared} ids, max |difference| {self.largest:.1e}"

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.equal + other.equal,
            self.compared + other.compared,
            self.near_ties + other.near_ties,
            max(self.largest, other.largest),
        )


def compare(peer: Chains, ours: Chains, *, chained: bool) -> Comparison:
    """chained: a token depends on those before it, so that nothing behind a near-tie is compared."""
    rows = min(len(peer.ids), len(ours.ids))
    k = min(peer.ids.shape[1], ours.ids.shape[1])
    one, other = ((c.ids[:rows, :k], c.firsts[:rows, :k], c.margins[:rows, :k]) for c in (peer, ours))
    clear = one[2] >= NEAR_TIE
    if chained:
        clear = clear.cumprod(dim=1).bool()
    same = (one[0] == other[0]) & clear
    gaps = [(a - b).abs()[same] for a, b in zip(one[1:], other[1:], strict=True)]
    largest = max((float(gap.max()) for gap in gaps if len(gap)), default=float("inf"))
    return Comparison(int(same.sum()), int(clear.sum()), int((~clear).sum()), largest)


def equal_drafts(peer: Chains, starts: list[int], drafted: list[list[int]]) -> list[tuple[int, int]]:
    """Per position of a draft: how many of an engine's ids are the peer's, of how many clear ones."""
    counts = []
    for position in range(len(drafted[0])):
        clear = [
            (peer.ids[row, position] == ids[position]).item()
            for row, ids in zip(starts, drafted, strict=True)
            if row < len(peer.ids) and (peer.margins[row, : position + 1] >= NEAR_TIE).all()
        ]
        counts.append((sum(clear), len(clear)))
    return counts
