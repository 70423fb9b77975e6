# SPDX-License-Identifier: Apache-2.0
"""The config class of drafts that call their model type `dflash` (TorchSpec), which has none."""

from __future__ import annotations

from transformers import AutoConfig, Qwen3Config


class DFlashEagleExtConfig(Qwen3Config):
    """A Qwen3 layer's keys; those of the block are kept as they stand."""

    model_type = "dflash"


def register() -> None:
    """Register the config once; a second call changes nothing. Workers need no registration: they
    receive the config as an object."""
    AutoConfig.register(DFlashEagleExtConfig.model_type, DFlashEagleExtConfig, exist_ok=True)
