# SPDX-License-Identifier: Apache-2.0
"""The optional packages of measuring, and what to install where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from vllm_eagle_ext.errors import SpeculativeConfigError

INSTALL = "pip install '.[measure]'"


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def require_package(package: str, *, use: str) -> None:
    """Refuse to go on without it.

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
