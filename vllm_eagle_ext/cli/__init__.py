# SPDX-License-Identifier: Apache-2.0
"""The console script `vllm-eagle`."""

from vllm_eagle_ext.cli.app import app

__all__ = ["app"]
