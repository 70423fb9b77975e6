# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend of the replaying layers: it says who builds their metadata."""

from __future__ import annotations

from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend, GDNAttentionMetadataBuilder

from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder


class ReplayBackend(GDNAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "GDN_EAGLE_EXT_REPLAY"

    @staticmethod
    def get_builder_cls() -> type[GDNAttentionMetadataBuilder]:
        return ReplayMetadataBuilder

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Let adaptive verification trim drafts on the device: a step's rows are read only there. vLLM
        says no for all recurrent states, whose metadata may go by the host's lengths (0.32)."""
        return True
