"""Imported once vLLM has chosen it: `activate` runs while vLLM is still looking for its platform."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class RayCpuPlatform(CpuPlatform):
    ray_device_key = "GPU"
