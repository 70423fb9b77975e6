# SPDX-License-Identifier: Apache-2.0
"""The device and the release that sizes of blocks follow from: what `plan` and the choice of a
scheme for recurrent states read.

Three rules of vLLM's are restated here, since `plan` runs without vLLM: kernels of a prefill, blocks of
FlashAttention 4, and what 0.32's kernels of a CPU misplace. Unit tests hold them to vLLM's functions.

Which kernels vLLM has for this CPU is asked of the library that it has loaded: its CPU wheel holds three
(`CpuPlatform.import_kernels`), for AVX-512 with bf16, for AVX-512, and for AVX2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, get_args

from vllm_eagle_ext.version import is_from

Prefill = Literal["triton", "flashinfer", "cutedsl"]
PREFILLS: tuple[str, ...] = ("auto", *get_args(Prefill))
OLDEST_RELEASE, NEWEST_RELEASE = "0.32", "0.33"
ASSUMED_GPU = (9, 0)  # where no GPU is known
_BLACKWELL_KEY_DIM, _BLACKWELL_CUDA = 128, 13  # of FlashInfer's and CuteDSL's prefill there
# FlashAttention 4 has a kernel of its own for this head size on sm_10x, with pages of so many tokens.
_FA4_HEAD_DIM, _FA4_PAGE = 256, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    release: str = NEWEST_RELEASE  # of vLLM
    platform: str = "cuda"  # "cpu", "cuda", or another that vLLM was built for
    capability: tuple[int, int] | None = None  # of a GPU
    cuda: int = 13  # major version of the CUDA that torch was built with
    gdn_prefill: str = "auto"  # as vLLM's --gdn-prefill-backend
    key_dim: int = 0  # width of a key head of the target's gated delta nets; 0: there are none

    @property
    def on_cpu(self) -> bool:
        return self.platform == "cpu"

    @property
    def name(self) -> str:
        return "CPU" if self.capability is None else f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def short_drafts_crash(self) -> bool:
        """Tell whether kernels misplace the inputs of the convolution in a step of fewer than K drafts.

        0.32's for gated delta nets on a CPU do, with one state block per draft token
        (`_spec_aware_spec`).
        """
        return self.on_cpu and not is_from(self.release, "0.33")

    @property
    def prefill(self) -> Prefill:
        """Name the kernels that compute the prefill of gated delta nets, as vLLM resolves them.

        A backend that the device lacks becomes Triton, without an error there and here.
        """
        flashinfer = self.capability == (9, 0)
        cutedsl = False
        if self.key_dim == _BLACKWELL_KEY_DIM and self.cuda >= _BLACKWELL_CUDA and self.capability:
            flashinfer = flashinfer or self.capability[0] in (10, 12)
            cutedsl = self.capability[0] == 10
        if self.gdn_prefill in ("auto", "flashinfer") and flashinfer:
            return "flashinfer"
        return "cutedsl" if self.gdn_prefill == "cutedsl" and cutedsl else "triton"

    @property
    def prefill_exports(self) -> bool:
        """Tell whether a prefill hands out states at block ends, with prefix caching.

        FlashInfer's does from 0.33 on, and vLLM reserves a block per request for it.
        """
        return is_from(self.release, "0.33") and self.prefill == "flashinfer"

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


def key_dim(text: object) -> int:
    """Read the width of a key head from the config of a language model; 0: it has none."""
    width = text.get("linear_key_head_dim") if isinstance(text, dict) else None
    return width if type(width) is int else 0


# Operators: the one that multiplies packed weights, and one that every library has.
_PACKED, _COMMON = "cpu_gemm_wna16", "rms_norm"


@cache
def loaded_kernels() -> LoadedKernels | None:
    """Return the kernels of this process's CPU; None: vLLM serves on another platform."""
    from vllm.platforms import current_platform

    return LoadedKernels() if current_platform.is_cpu() else None


def node_bytes() -> int:
    """Ask vLLM for the memory of the smallest NUMA node that it may use, or less in a container."""
    from vllm.utils.cpu_resource_utils import get_memory_node_info, get_visible_memory_node

    return min(int(get_memory_node_info(node).total_memory) for node in get_visible_memory_node())


class LoadedKernels:
    """Asks the library that this process has loaded; what fails to answer counts as there."""

    @cached_property
    def packed_weights(self) -> bool:
        """Tell whether weights of a few bits that are packed into integers can be multiplied."""
        import torch

        _load()
        return hasattr(torch.ops._C, _PACKED) or not hasattr(torch.ops._C, _COMMON)

    @cached_property
    def exact_int8(self) -> bool:
        """Tell whether a product of eight-bit integers is exact, not cut off at 16 bits.

        The largest integers tell, whose sums of two need more.
        """
        import torch

        size, largest = 64, 127
        weight = torch.full((size, size), largest, dtype=torch.int8)  # [N, K]
        out = torch.empty(1, size)
        try:
            ops = _load()
            scales = torch.ones(size)
            handler = ops.create_onednn_scaled_mm(weight.t(), scales, torch.float32, True, False, 1)
            row = torch.full((1, size), largest, dtype=torch.int8)
            ops.onednn_scaled_mm(handler, row, out, torch.ones(1, 1), None, None, None)
        except Exception:  # noqa: BLE001 - what cannot be asked is no reason to refuse
            return True
        return bool((out == size * largest**2).all())

    @cached_property
    def bf16(self) -> bool:
        """Tell whether bfloat16 has a kernel of its own, not a fallback."""
        import torch

        try:
            _load().create_onednn_mm(torch.zeros(32, 32, dtype=torch.bfloat16), 1)
        except RuntimeError:  # oneDNN's, where vLLM falls back
            return False
        except Exception:  # noqa: BLE001 - what cannot be asked is not warned of
            return True
        return True

    @cached_property
    def tiles(self) -> bool:
        """Tell whether matrices can be multiplied tile by tile (AMX), as vLLM's kernel for blocks of
        eight-bit floats asks."""
        import torch

        return torch.cpu._is_amx_tile_supported()


def _load() -> Any:
    """Load vLLM's library, as a worker would, and return the functions that call it."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return _custom_ops
