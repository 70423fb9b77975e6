# SPDX-License-Identifier: Apache-2.0
"""From the published rows of query and gate to those of the run-time projection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from vllm_eagle_ext.draft.attention import ROWS
from vllm_eagle_ext.errors import UnsupportedDraftError


@dataclass(frozen=True, slots=True)
class GatePlan:
    """Travels to the workers as plain JSON, with the heads it belongs to."""

    kind: str  # "elementwise" or "headwise"
    module: str  # "q_proj", or the gate's own
    layout: str  # "interleaved" or "concat"
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Return how many rows the gate has per head."""
        return self.head_dim if self.kind == "elementwise" else 1


def with_gates(
    weights: Iterable[tuple[str, torch.Tensor]], plan: GatePlan, ranks: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield canonical names and tensors; every q_proj leaves with its gate.

    Args:
        ranks: of tensor parallelism; each takes its heads' queries and gates as one block.
    """
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        module, _, suffix = name.rpartition(".")
        attention, _, part = module.rpartition(".")
        has_rows = suffix in ROWS and tensor.numel() > 1  # one scale for all rows stays as it is
        if not attention.endswith("self_attn") or part not in ("q_proj", plan.module) or not has_rows:
            yield name, tensor
        elif plan.module == "q_proj":
            yield name, runtime_rows(*_split(tensor, plan, name), ranks)
        else:
            waiting[name] = tensor
            names = [f"{attention}.{each}.{suffix}" for each in ("q_proj", plan.module)]
            if all(each in waiting for each in names):
                query, gate = (waiting.pop(each).unflatten(0, (plan.heads, -1)) for each in names)
                yield names[0], runtime_rows(query, gate, ranks)
    if waiting:
        raise _bad_gate(", ".join(waiting), "one of the two", f"query and {plan.module}, both with it")


def _split(tensor: torch.Tensor, plan: GatePlan, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Split [heads * (d + w), ..] into query [heads, d, ..] and gate [heads, w, ..].

    Scales of blocks of rows have one row per block; whole blocks move as rows do.
    """
    rows = plan.heads * (plan.head_dim + plan.width)
    block = rows // tensor.shape[0]
    d, width = plan.head_dim // block, plan.width // block
    if block * tensor.shape[0] != rows or d * block != plan.head_dim or width * block != plan.width:
        raise _bad_gate(name, tuple(tensor.shape), f"{rows} rows, or whole blocks of them for each head")
    if plan.layout == "interleaved":
        by_head = tensor.unflatten(0, (plan.heads, d + width))
        return by_head[:, :d], by_head[:, d:]
    query, gate = tensor.split([plan.heads * d, plan.heads * width])
    return query.unflatten(0, (plan.heads, d)), gate.unflatten(0, (plan.heads, width))


def _bad_gate(name: str, value: object, allowed: str) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field=f"{name} of the draft's files",
        value=value,
        allowed=allowed,
        remedy="use the draft with plain weights; a weight update brings both in the same bucket",
    )


def runtime_rows(
    query: torch.Tensor,  # [heads, d, ..]
    gate: torch.Tensor,  # [heads, d or 1, ..]
    ranks: int,
) -> torch.Tensor:  # [ranks * 2 * (heads / ranks) * d, ..]
    """Lay out for each rank all queries, then all gates; a gate per head is repeated for its
    elements."""
    heads, d = query.shape[:2]
    gate = gate.expand(-1, d, *gate.shape[2:])
    by_rank = [part.unflatten(0, (ranks, heads // ranks)) for part in (query, gate)]
    if query.dtype.itemsize == 1:  # one-byte floats have no kernels for concatenation everywhere
        by_rank = [part.contiguous().view(torch.uint8) for part in by_rank]
    return torch.cat(by_rank, dim=1).flatten(0, 2).view(query.dtype)
