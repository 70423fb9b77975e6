# SPDX-License-Identifier: Apache-2.0
"""Drafters for vLLM that read published EAGLE-3 checkpoints as they are.

Importing this package loads the standard library only; vLLM calls `register` in each of its processes.
"""

from __future__ import annotations

__all__ = ["__version__", "register"]

__version__ = "0.1.0"


def register() -> None:
    """Entry point of `vllm.general_plugins`: idempotent, cheap, never raises."""
    from vllm_eagle_ext.plugin import register as register_plugin

    register_plugin()
