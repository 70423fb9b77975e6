# SPDX-License-Identifier: Apache-2.0
"""What vLLM's registries know of architectures, and another one for a ModelConfig."""

from __future__ import annotations

from typing import Any


def registered_architectures() -> frozenset[str]:
    from vllm.model_executor.models.registry import ModelRegistry

    return frozenset(ModelRegistry.get_supported_archs())


def use_architecture(model_config: Any, architecture: str) -> None:
    """Give a ModelConfig another registered architecture of the same capabilities, as
    `SpeculativeConfig.update_arch_` does for drafts. vLLM's own update of the engine's config, found
    by architecture, stays the one of the old name."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    update = MODELS_CONFIG_MAP.get(model_config.architecture)
    if update is not None:
        MODELS_CONFIG_MAP[architecture] = update
    model_config.hf_config.architectures = [architecture]
    model_config.model_arch_config = model_config.get_model_arch_config()
    model_config._architecture = architecture
