# SPDX-License-Identifier: Apache-2.0
"""Finds the platform that the vLLM installed here runs on, and its GPU, without vLLM or torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.memory.deployment import NEWEST_RELEASE, Deployment
from vllm_eagle_ext.preflight.cpu_kernels import ForeseenKernels
from vllm_eagle_ext.version import installed_vllm

PLATFORMS = ("auto", "cpu", "cuda")
_BUILDS = ("cpu", "rocm", "xpu", "tpu")  # in the local part of a version; CUDA's has a number or none


@dataclass(frozen=True, slots=True)
class Platform:
    """Says where the engine would run."""

    name: str  # "cpu", "cuda", or another that vLLM was built for
    why: str  # it is assumed
    vllm: str | None = None  # version of the vLLM that would serve; None: not known


def find_platform(asked: str) -> Platform:
    """Find the platform that a check is for.

    Args:
        asked: one of PLATFORMS.

    Raises:
        SpeculativeConfigError: another word.
    """
    if asked not in PLATFORMS:
        raise SpeculativeConfigError(
            field="--platform", value=asked, allowed=", ".join(PLATFORMS),
            remedy="leave it out for the platform of the vLLM that is installed",
        )  # fmt: skip
    return _installed() if asked == "auto" else Platform(asked, "as --platform says")


def _installed() -> Platform:
    found = installed_vllm()
    if found is None:
        has_gpu = shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia/version")
        why = "and there is an NVIDIA GPU" if has_gpu else "a GPU is assumed"
        return Platform("cuda", f"no vLLM is installed here, {why}")
    build = next((build for build in _BUILDS if build in found.partition("+")[2]), "cuda")
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        build = "cpu"
    return Platform(build, f"vLLM {found} is installed here", found)


def find_deployment(platform: Platform) -> Deployment:
    """Find release and device as a plan does: those that are here, else the newest release and sm_90."""
    release = (platform.vllm or installed_vllm() or NEWEST_RELEASE).partition("+")[0]
    if platform.name == "cpu":
        return Deployment(release=release, capability=None)
    if platform.name != "cuda":
        return Deployment(release=release, capability=(0, 0))
    found = _driver_capability()
    return Deployment(release=release, capability=found) if found else Deployment(release=release)


def find_cpu_kernels(platform: Platform) -> ForeseenKernels | None:
    """Foresee what vLLM's kernels for this machine's CPU can compute; None: it would run elsewhere."""
    return ForeseenKernels(find_deployment(platform).release) if platform.name == "cpu" else None


def _driver_capability() -> tuple[int, int] | None:
    """Ask the driver for the first GPU's compute capability."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        asked = [command, "--query-gpu=compute_cap", "--format=csv,noheader"]
        printed = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"(\d+)\.(\d)\s", printed)
    return (int(found[1]), int(found[2])) if found else None
