"""vLLM's planning of the KV cache, in the module where the release that runs has it."""

from __future__ import annotations

try:
    from vllm.v1.core import kv_cache_planning
except ImportError:  # 0.32 plans in the module that 0.33 has split
    from vllm.v1.core import kv_cache_utils as kv_cache_planning

__all__ = ["kv_cache_planning"]
