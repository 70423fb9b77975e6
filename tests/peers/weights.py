"""Weights that make every flag and every tensor matter."""

from __future__ import annotations

import torch


def perturb(model: torch.nn.Module, *, seed: int = 0, keep: tuple[str, ...] = ()) -> None:
    """Norms around one, matrices that keep a row's size, biases of some size; bf16, as drafts are.

    keep: words in the names of tensors that stay.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        if any(word in name for word in keep):
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim == 2:
            noise = noise * 1.5 / tensor.shape[1] ** 0.5
        elif name.endswith("norm.weight") or ".fc_norm." in f".{name}":
            noise = 1 + 0.3 * noise
        elif name.endswith("bias"):
            noise = 0.3 * noise
        tensor.data = noise.to(torch.bfloat16)
    for name, tensor in model.named_parameters():
        if any(word in name for word in keep):
            tensor.data = tensor.data.to(torch.bfloat16)


def kept_ids(vocabulary: int, size: int) -> torch.Tensor:
    """The target ids of a reduced vocabulary: from 5 on in equal steps, with a jump in the middle."""
    step = vocabulary // (size + 1)
    ids = 5 + torch.arange(size) * step
    ids[size // 2 :] += step - 1
    return ids


def vocabulary_maps(vocabulary: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """t2d, a mask [V], and d2t, offsets [Vd]."""
    ids = kept_ids(vocabulary, size)
    t2d = torch.zeros(vocabulary, dtype=torch.bool)
    t2d[ids] = True
    return t2d, ids - torch.arange(size)
