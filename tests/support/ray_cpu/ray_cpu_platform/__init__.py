"""vLLM's CPU platform, with Ray's logical GPUs as its devices.

The CPU platform names no Ray resource, and vLLM's Ray executor refuses it for that alone. Only processes
with this folder on PYTHONPATH see it.
"""

from __future__ import annotations


def activate() -> str:
    """Entry point of `vllm.platform_plugins`."""
    return "ray_cpu_platform.platform.RayCpuPlatform"
