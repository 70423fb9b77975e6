# SPDX-License-Identifier: Apache-2.0
"""Lets a draft attend only to the last tokens, whatever the length of the text.

A window changes what is drafted, and so how much of it is accepted; it never changes the text, which the
target verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from vllm_eagle_ext.checkpoint.attention import LayerAttention

if TYPE_CHECKING:
    from vllm_eagle_ext.drafter_classes import Drafter

WindowOption = int | Literal["auto"] | None
OPTION = "additional_config.eagle_ext.draft_window"


def asked_window(
    option: WindowOption, trained_length: int | None, max_model_len: int | None
) -> int | None:
    """Return the tokens that the option asks for; None: the draft attends as it was published.

    "auto" is what the draft was trained on, where its config says so and texts may be longer.
    """
    if option != "auto":
        return option
    if trained_length is None or (max_model_len is not None and max_model_len <= trained_length):
        return None
    return trained_length


def can_have_a_window(drafter: Drafter) -> bool:
    """Tell whether vLLM has windows for such a draft.

    Latent attention and vLLM's own drafter classes have none.
    """
    return drafter.backbone.has_kv_heads and not drafter.is_vllms


def with_window(layers: Sequence[LayerAttention], window: int) -> tuple[LayerAttention, ...]:
    """Give a window to the layers that were published without one; published windows stay."""
    return tuple(replace(layer, window=layer.window or window) for layer in layers)
