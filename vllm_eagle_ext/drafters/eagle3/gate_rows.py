# SPDX-License-Identifier: Apache-2.0
"""From the published rows of query and gate to those of the run-time projection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

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
        """Rows of the gate per head."""
        return self.head_dim if self.kind == "elementwise" else 1


def with_gates(
    weights: Iterable[tuple[str, torch.Tensor]], plan: GatePlan, ranks: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Canonical names and tensors; every q_proj leaves with its gate.

    Args:
        ranks: of tensor parallelism; each takes its heads' queries and gates as one block.
    """
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        module, _, suffix = name.rpartition(".")
        attention, _, part = module.rpartition(".")
        if not attention.endswith("self_attn") or part not in ("q_proj", plan.module):
            yield name, tensor
        elif plan.module == "q_proj":
            yield name, runtime_rows(*_split(tensor, plan, name), plan, ranks)
        else:
            waiting[name] = tensor
            query = waiting.get(f"{attention}.q_proj.{suffix}")
            gate = waiting.get(f"{attention}.{plan.module}.{suffix}")
            if query is not None and gate is not None:
                query = query.unflatten(0, (plan.heads, plan.head_dim))
                gate = gate.unflatten(0, (plan.heads, plan.width))
                yield f"{attention}.q_proj.{suffix}", runtime_rows(query, gate, plan, ranks)


def _split(tensor: torch.Tensor, plan: GatePlan, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """[heads * (d + w), ..] -> query [heads, d, ..], gate [heads, w, ..]."""
    d, width = plan.head_dim, plan.width
    if tensor.numel() == 1:  # one scale for all rows
        return tensor, tensor
    if tensor.shape[0] != plan.heads * (d + width):
        raise UnsupportedDraftError(
            field=f"rows of {name} of the draft's files",
            value=tuple(tensor.shape),
            allowed=f"{plan.heads * (d + width)}, one per row of query and gate",
            remedy="use the draft with plain weights: blocks of rows cannot be told apart by head",
        )
    if plan.layout == "interleaved":
        rows = tensor.unflatten(0, (plan.heads, d + width))
        return rows[:, :d], rows[:, d:]
    query, gate = tensor.split([plan.heads * d, plan.heads * width])
    return query.unflatten(0, (plan.heads, d)), gate.unflatten(0, (plan.heads, width))


def runtime_rows(
    query: torch.Tensor,  # [heads, d, ..]
    gate: torch.Tensor,  # [heads, d or 1, ..]
    plan: GatePlan,
    ranks: int,
) -> torch.Tensor:  # [ranks * 2 * (heads / ranks) * d, ..]
    """Per rank all queries, then all gates; a gate per head is repeated for its elements."""
    if query.numel() == 1:
        return query
    gate = gate.expand(-1, plan.head_dim, *gate.shape[2:])
    by_rank = [part.unflatten(0, (ranks, plan.heads // ranks)) for part in (query, gate)]
    if query.dtype.itemsize == 1:  # one-byte floats have no kernels for concatenation everywhere
        by_rank = [part.contiguous().view(torch.uint8) for part in by_rank]
    return torch.cat(by_rank, dim=1).flatten(0, 2).view(query.dtype)
