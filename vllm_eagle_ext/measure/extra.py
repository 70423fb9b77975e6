# SPDX-License-Identifier: Apache-2.0
"""Refuses to measure where a package that it needs is missing, and says what to install."""

from __future__ import annotations

from importlib.util import find_spec

from vllm_eagle_ext.errors import SpeculativeConfigError

INSTALL = "pip install '.[measure]'"


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def require_package(package: str, *, use: str) -> None:
    """Refuse to go on without a package.

    Args:
        use: what the package is needed for.

    Raises:
        SpeculativeConfigError: it is not installed; the remedy names the extra.
    """
    if not is_installed(package):
        raise SpeculativeConfigError(
            field=package, value=None, allowed=f"installed, for {use}",
            remedy=f"install the package with its extra, as in {INSTALL}, or only {package}",
        )  # fmt: skip
