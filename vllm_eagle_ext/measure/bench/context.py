# SPDX-License-Identifier: Apache-2.0
"""Records what a measurement ran on; it is written with the figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from vllm_eagle_ext.measure.bench.results import Context
from vllm_eagle_ext.measure.engine.machine import cores, gpus, load_average, processor, versions
from vllm_eagle_ext.printable import shell_line

_PREFIXES = ("VLLM_", "OMP_", "TRITON_", "CUDA_VISIBLE_DEVICES")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def run_context(arguments: Sequence[str]) -> Context:
    """Describe this machine and its software.

    Args:
        arguments: of the command, without the program.
    """
    return Context(
        command=shell_line(["vllm-eagle", *arguments]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        device=", ".join([f"{processor()}, {cores()} cores", *gpus()]),
        environment={name: os.environ[name] for name in sorted(os.environ) if _matters(name)},
        cores=cores(),
        load_average=load_average(),
    )


def _matters(name: str) -> bool:
    return name.startswith(_PREFIXES) and not any(word in name for word in _SECRET)
