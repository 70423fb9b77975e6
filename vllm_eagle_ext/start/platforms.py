# SPDX-License-Identifier: Apache-2.0
"""Tells without vLLM which platform, release and K a command is for."""

from __future__ import annotations

import os
import shutil
import sys

from packaging.version import Version

from vllm_eagle_ext.draft import DraftSpec
from vllm_eagle_ext.draft.rules.request import MOST_K
from vllm_eagle_ext.errors import OptionsError, SpeculativeConfigError
from vllm_eagle_ext.memory.device import NEWEST_RELEASE, OLDEST_RELEASE
from vllm_eagle_ext.releases import how_tested
from vllm_eagle_ext.start.described import DEVICES
from vllm_eagle_ext.version import installed_vllm

PLATFORMS = ("auto", "cpu", "cuda", *(f"cuda:{name}" for name in DEVICES))
_BUILDS = ("cpu", "rocm", "xpu", "tpu")  # in the local part of a version; CUDA's has a number or none


def usual_k(spec: DraftSpec | None) -> int:
    """Return the K that a draft was trained for, or 3."""
    if spec is None:
        return 3
    most = spec.most_drafted
    # A file that states more than any training unrolls is not followed.
    stated = spec.trained_k if (spec.trained_k or 0) <= MOST_K else None
    usual = stated or most or 3
    return min(usual, most) if most else usual


def find_platform(asked: str) -> tuple[str, str]:
    """Find the platform that a check is for, and why it is assumed.

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
    return _installed() if asked == "auto" else (asked.partition(":")[0], "as --platform says")


def _installed() -> tuple[str, str]:
    found = installed_vllm()
    if found is None:
        has_gpu = shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia/version")
        why = "and there is an NVIDIA GPU" if has_gpu else "a GPU is assumed"
        return "cuda", f"no vLLM is installed here, {why}"
    build = next((build for build in _BUILDS if build in found.partition("+")[2]), "cuda")
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        build = "cpu"
    return build, f"vLLM {found} is installed here ({how_tested(found)})"


def read_release(asked: str) -> str:
    """Return a release that is given by --vllm.

    Raises:
        OptionsError: it is none, or older than those that are known.
    """
    try:
        release = Version(asked)
        is_known = release >= Version(OLDEST_RELEASE)
    except ValueError:  # InvalidVersion is one, and what Python says of thousands of digits
        is_known = False
    if not is_known:
        raise OptionsError(
            field="--vllm", value=asked, allowed=f"a release from {OLDEST_RELEASE} on, such as "
            f"{NEWEST_RELEASE}", remedy="leave it out for the release that is installed",
        )  # fmt: skip
    return release.public
