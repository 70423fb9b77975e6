# SPDX-License-Identifier: Apache-2.0
"""DFlash's drafter class."""

from __future__ import annotations

from vllm_eagle_ext.families.drafter_classes import QWEN3, Drafter

DFLASH_DRAFTER = Drafter(
    architecture="DFlashEagleExtQwen3ForCausalLM",
    package="vllm_eagle_ext.families.dflash",
    method="dflash",
    backbone=QWEN3,
    published=(
        "DFlashDraftModel",
        "Qwen3DFlashDraftModel",  # NeMo AutoModel
        "QwenDFlashDraftModel",  # AngelSlim
    ),
    speculators=(("dflash", "qwen3"), ("dflash", "llama")),  # which trains layers of Qwen3 for both
)

DRAFTERS = (DFLASH_DRAFTER,)
