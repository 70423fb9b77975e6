# SPDX-License-Identifier: Apache-2.0
"""Which implementation of the operation runs here, and vLLM's attention backend around it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from vllm.platforms import current_platform
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend, GDNAttentionMetadataBuilder


class ReplayBackend(GDNAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "GDN_EAGLE_EXT_REPLAY"

    @staticmethod
    def get_builder_cls() -> type[GDNAttentionMetadataBuilder]:
        from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder

        return ReplayMetadataBuilder


@cache
def backend() -> ModuleType:
    """`on_cpu` or `on_gpu`: the same names in both."""
    if current_platform.is_cpu():
        from vllm_eagle_ext.replay import on_cpu

        return on_cpu
    from vllm_eagle_ext.replay import on_gpu

    return on_gpu
