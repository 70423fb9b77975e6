# SPDX-License-Identifier: Apache-2.0
"""Says what a release of vLLM and a device decide of the sizes of blocks.

The rules are vLLM's own, restated so that they can be asked without it. A unit test holds them to vLLM's
functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from packaging.version import InvalidVersion, Version

Prefill = Literal["triton", "flashinfer", "cutedsl"]
AskedPrefill = Literal["auto", "triton", "flashinfer", "cutedsl"]
PREFILLS: tuple[str, ...] = get_args(AskedPrefill)

OLDEST_RELEASE, NEWEST_RELEASE = "0.32", "0.33"
# From here on FlashInfer's prefill exports states, for which vLLM reserves a block per request.
_EXPORTS_FROM = Version("0.33")
_BLACKWELL_KEY_DIM, _BLACKWELL_CUDA = 128, 13  # of FlashInfer's and CuteDSL's prefill there
# FlashAttention 4 has a kernel of its own for this head size on sm_10x, with pages of so many tokens.
_FA4_HEAD_DIM, _FA4_PAGE = 256, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Names the release and the device that a target is served with."""

    release: str = NEWEST_RELEASE
    capability: tuple[int, int] | None = (9, 0)  # compute capability; None: a CPU
    cuda: int = 13  # major version of the CUDA that torch was built with
    gdn_prefill: str = "auto"  # as vLLM's --gdn-prefill-backend

    @property
    def cpu(self) -> bool:
        return self.capability is None

    def prefill(self, key_dim: int) -> Prefill:
        """Resolve which kernels compute the prefill of gated delta nets, as vLLM does.

        A backend that the device lacks becomes Triton, without an error there and here.

        Args:
            key_dim: width of a key head.
        """
        flashinfer = self.capability == (9, 0)
        cutedsl = False
        if key_dim == _BLACKWELL_KEY_DIM and self.cuda >= _BLACKWELL_CUDA and self.capability:
            flashinfer = flashinfer or self.capability[0] in (10, 12)
            cutedsl = self.capability[0] == 10
        if self.gdn_prefill in ("auto", "flashinfer") and flashinfer:
            return "flashinfer"
        return "cutedsl" if self.gdn_prefill == "cutedsl" and cutedsl else "triton"

    def exports_states(self, key_dim: int) -> bool:
        """Find out whether a prefill hands out states at block ends, with prefix caching."""
        return _is_from(self.release, _EXPORTS_FROM) and self.prefill(key_dim) == "flashinfer"

    def attention_alignment(
        self, head_dim: int, *, element_bytes: int, non_causal_draft: bool
    ) -> int | None:
        """Resolve of how many tokens a block of attention is a multiple; None: as vLLM's default.

        On sm_10x vLLM serves a target with FlashInfer, but a draft that looks both ways with
        FlashAttention 4, which is asked for its pages by the head size of the target.

        Args:
            head_dim: width of the target's key/value heads.
            element_bytes: of its keys and values; quantised ones are not served by that kernel.
            non_causal_draft: whether a layer of the draft looks at later rows, as DFlash's do.
        """
        is_fa4 = self.capability is not None and self.capability[0] == 10
        if is_fa4 and non_causal_draft and head_dim == _FA4_HEAD_DIM and element_bytes > 1:
            return _FA4_PAGE
        return None


def device_name(capability: tuple[int, int] | None) -> str:
    return "CPU" if capability is None else f"sm_{capability[0]}{capability[1]}"


def _is_from(release: str, first: Version) -> bool:
    try:
        return Version(release) >= first
    except InvalidVersion:  # a development build such as "dev"
        return True
