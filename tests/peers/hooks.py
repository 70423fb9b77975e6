"""Ways into a peer's own forward, whatever its arguments: it is run, not copied."""

from __future__ import annotations

from typing import Any

import torch


def draft_own_tokens(model: Any, target_ids: torch.Tensor) -> list[torch.Tensor]:
    """From its second step on, a forward of several steps reads what the step before has chosen.

    Args:
        target_ids: [Vd], of the draft's ids.

    Returns:
        The logits [rows, Vd] of each step, as the forward makes them.
    """
    logits: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, output: torch.Tensor) -> None:
        logits.append(output[0])

    def own(_module: Any, _args: Any) -> tuple[torch.Tensor] | None:
        return (target_ids[logits[-1].argmax(-1)][None],) if logits else None

    model.lm_head.register_forward_hook(keep)
    model.embed_tokens.register_forward_pre_hook(own)
    return logits


class _StopError(Exception):
    """Raised once the logits are there: what follows is a loss."""


def until_logits(model: Any, head: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What `head` makes in the model's forward, which ends there: [rows, Vd]."""
    logits: list[torch.Tensor] = []

    def stop(_module: Any, _args: Any, output: torch.Tensor) -> None:
        logits.append(output[0])
        raise _StopError

    handle = head.register_forward_hook(stop)
    try:
        model(*args, **kwargs)
    except _StopError:
        pass
    finally:
        handle.remove()
    return logits[0]
