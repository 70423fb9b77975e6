"""What tests that run with several releases of vLLM ask of the one that runs."""

from __future__ import annotations

from packaging.version import Version

from vllm_eagle_ext.compat import vllm_version


def is_release(minor: str) -> bool:
    """Whether the vLLM that runs belongs to a release such as "0.32"."""
    return Version(vllm_version()).release[:2] == Version(minor).release[:2]
