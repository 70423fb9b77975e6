# SPDX-License-Identifier: Apache-2.0
"""Says which releases of vLLM the package is tested with, and how releases compare; imports no vLLM."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

# Of 0.33 the Python files were run, with 0.32's compiled parts (tools/overlay.py), its CUDA build on one
# GPU (docs/dev/gpu.md), and its source read.
TESTED_VLLM = ">=0.32,<0.34"
RUN_VLLM = ">=0.32,<0.33"  # as published


def is_tested(version: str) -> bool:
    return _is_in(TESTED_VLLM, version)


def was_run(version: str) -> bool:
    """Say whether the tests were run with this release as it is published, compiled parts included."""
    return _is_in(RUN_VLLM, version)


def how_tested(version: str) -> str:
    """Say how a release was tested, in the words of README, `status`, `check` and the log."""
    if was_run(version):
        return "run: all tests, on CPUs"
    if is_tested(version):
        return "run in parts: its Python files on CPUs, its CUDA build once, on an H100"
    return f"not run: outside {TESTED_VLLM}"


def is_from(release: str, first: str) -> bool:
    """Tell whether a release is `first` or later.

    A candidate such as "0.33.0rc1" counts as its release, a development build such as "dev" as later.
    """
    try:
        return Version(Version(release).base_version) >= Version(first)
    except InvalidVersion:
        return True


def _is_in(releases: str, version: str) -> bool:
    try:
        return SpecifierSet(releases).contains(Version(version), prereleases=True)
    except InvalidVersion:  # a development build such as "dev"
        return False
