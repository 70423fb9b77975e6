# SPDX-License-Identifier: Apache-2.0
"""Drafters for vLLM that read published EAGLE-3 and DFlash drafts as they are.

Importing this package loads the standard library only; vLLM calls `register` in each of its processes.
"""

from __future__ import annotations

from vllm_eagle_ext.version import __version__

__all__ = ["__version__", "register"]


def register() -> None:
    """Register with vLLM, as the entry point of `vllm.general_plugins`: idempotent, cheap, never raises.

    Raising here would stop every vLLM run on the machine, with and without a draft.
    """
    try:
        from vllm_eagle_ext.plugin import register as register_plugin

        register_plugin()
    except Exception:  # noqa: BLE001
        import logging

        logging.getLogger("vllm.vllm_eagle_ext").exception(
            "vllm-eagle-ext could not register itself; vLLM runs without it."
        )
