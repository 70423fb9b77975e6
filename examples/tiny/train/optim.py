"""Muon for the matrices inside the layers, AdamW for the rest; warm-up, then linear decay."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

MUON_LEARNING_RATE = 0.02
ADAMW_LEARNING_RATE = 3e-3
WARMUP_STEPS = 50


def build_optimizers(
    model: nn.Module, *, norm_learning_rate: float = ADAMW_LEARNING_RATE
) -> list[Optimizer]:
    """Each parameter group keeps its peak rate under "peak", for `set_learning_rate`."""
    matrices, tables, norms = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            norms.append(parameter)
        elif "embed_tokens" in name or "lm_head" in name or parameter.ndim > 2:  # convolutions
            tables.append(parameter)
        else:
            matrices.append(parameter)
    groups = [
        {"params": tables, "peak": ADAMW_LEARNING_RATE},
        {"params": norms, "peak": norm_learning_rate},
    ]
    return [
        Muon([{"params": matrices, "peak": MUON_LEARNING_RATE}], weight_decay=0.01, momentum=0.95),
        AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_learning_rate(optimizers: list[Optimizer], step: int, total_steps: int) -> None:
    factor = min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / total_steps)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def update(model: nn.Module, loss: torch.Tensor, optimizers: list[Optimizer]) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
