# SPDX-License-Identifier: Apache-2.0
"""What follows from weights is made again after vLLM has loaded a model's weights layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase


class AfterReload(torch.nn.Module, AttentionLayerBase):
    """Is called when a layerwise reload is over: vLLM calls only what it takes for attention, last."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self._then()

    def get_attn_backend(self) -> None:
        """Return None. vLLM does not ask: the module is in no register of layers."""

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> None:
        """Return None, for the same reason."""
