# SPDX-License-Identifier: Apache-2.0
"""Describes the engine that serves a draft: the one description that rules, a start and `plan` read.

A start makes it from vLLM's own objects (`preflight/of_vllm.py`), `check` and `plan` from files and from
what was asked (`preflight/foreseen.py`). Rules of vLLM's that follow from a release and a device are
restated here, so that they can be asked without vLLM; unit tests hold them to vLLM's functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from vllm_eagle_ext.options import Options
from vllm_eagle_ext.releases import is_from

Runner = Literal["v1", "v2"]
Prefill = Literal["triton", "flashinfer", "cutedsl"]
PREFILLS: tuple[str, ...] = ("auto", *get_args(Prefill))
OLDEST_RELEASE, NEWEST_RELEASE = "0.32", "0.33"
ASSUMED_GPU = (9, 0)  # where no GPU is known
_BLACKWELL_KEY_DIM, _BLACKWELL_CUDA = 128, 13  # of FlashInfer's and CuteDSL's prefill there
# FlashAttention 4 has a kernel of its own for this head size on sm_10x, with pages of so many tokens.
_FA4_HEAD_DIM, _FA4_PAGE = 256, 128


class CpuKernels(Protocol):
    """Answers what a CPU's kernels can compute."""

    @property
    def packed_weights(self) -> bool:
        """Tell whether weights of a few bits that are packed into integers can be multiplied."""

    @property
    def exact_int8(self) -> bool:
        """Tell whether a product of eight-bit integers is exact, not cut off at 16 bits."""

    @property
    def bf16(self) -> bool:
        """Tell whether bfloat16 has a kernel of its own, not a fallback."""

    @property
    def tiles(self) -> bool:
        """Tell whether matrices can be multiplied tile by tile (AMX)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Holds what is known of an engine. None: not known, and what depends on it is not judged."""

    is_foreseen: bool = True  # from files and from what was asked; False: from vLLM's own objects
    # vLLM and its device
    release: str = NEWEST_RELEASE
    release_is_known: bool = True  # False: another machine, which may have another release, will serve
    platform: str = "cuda"  # "cpu", "cuda", or another that vLLM was built for
    platform_why: str = ""  # why this platform is assumed
    capability: tuple[int, int] | None = None  # of a GPU
    cuda: int = 13  # major version of the CUDA that torch was built with
    gdn_prefill: str = "auto"  # as vLLM's --gdn-prefill-backend
    has_triton: bool = True
    cpu_kernels: CpuKernels | None = None  # None: it runs elsewhere
    packs_convolutions: bool = True  # vLLM's, of bfloat16 weights on a CPU; True where it is not known
    runner: Runner | None = None
    registered: frozenset[str] = frozenset()  # other architectures that this vLLM knows
    # the target
    architecture: str = ""
    text: Mapping[str, Any] = field(default_factory=dict)  # config of its language model
    dtype: str = "bfloat16"  # as it is served
    is_hybrid: bool = False  # keeps recurrent states
    image_class: str | None = (
        None  # the class that takes images and does not name their token; None: none
    )
    image_token_id: object = None  # that the config states
    hands_out_states: bool = True  # its class in vLLM gives a draft the states of its layers
    target_head_is_quantised: bool = False  # as its config states
    # what the engine is started with
    options: Options = field(default_factory=Options)
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    prefix_caching: bool = True
    mixes_caches: bool = True  # layers of several kinds get KV-cache groups of their own
    kv_connector: str | None = None
    prompt_embeds: bool = False  # requests may bring embeddings in place of tokens
    default_min_p: object = None  # of requests that name none, by the target's generation_config.json
    lora: bool = False
    lora_on_head: bool = False  # adapters may change the output layer
    microbatches: bool = False
    vllm_replays: bool = False  # --use-replayssm, for a target whose class replays by itself
    scheduler: object = None  # another class than vLLM's
    weight_transfer: str | None = None  # the backend that brings weights while it runs
    load_format: object = None  # of the draft
    # the speculative config
    # As a user gave it, keys spelt as vLLM does.
    speculative: Mapping[str, Any] = field(default_factory=dict)
    method: str | None = None
    k: int | None = None
    schedule: object = None  # of K by batch size, where vLLM follows one
    parallel_drafting: bool | None = None
    adaptive_verification: bool = False  # vLLM's key, which trims drafts on the device

    @property
    def on_cpu(self) -> bool:
        return self.platform == "cpu"

    @property
    def key_dim(self) -> int:
        """Return the width of a key head of the gated delta nets; 0: there are none."""
        width = self.text.get("linear_key_head_dim")
        return width if type(width) is int else 0

    @property
    def v2_needs_aux_states(self) -> bool:
        """Tell whether the V2 runner wants aux states whatever the draft's config says, as 0.32's does.

        It is taken to, where another release may serve.
        """
        return not (self.release_is_known and is_from(self.release, "0.33"))

    @property
    def short_drafts_crash(self) -> bool:
        """Tell whether kernels misplace the inputs of the convolution in a step of fewer than K drafts.

        0.32's for gated delta nets on a CPU do, with one state block per draft token
        (`_spec_aware_spec`).
        """
        return self.on_cpu and not is_from(self.release, "0.33")

    @property
    def per_token_crashes(self) -> bool:
        """Tell whether a schedule of K meets kernels that need all K drafts."""
        return bool(self.schedule) and self.short_drafts_crash

    @property
    def per_token_misreads(self) -> bool:
        """Tell whether vLLM's CPU kernels would take packed weights of a convolution for plain."""
        packed = self.packs_convolutions and self.dtype == "bfloat16"
        return self.lora and self.on_cpu and packed

    @property
    def needs_replay(self) -> bool:
        """Tell whether some steps verify fewer drafts than the per-token scheme can serve."""
        return self.per_token_crashes or self.per_token_misreads or self.adaptive_verification

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


def device_name(capability: tuple[int, int] | None) -> str:
    return "CPU" if capability is None else f"sm_{capability[0]}{capability[1]}"


def speculative_keys(given: object) -> dict[str, Any]:
    """Spell the keys of a speculative config as vLLM does, which takes dashes too."""
    if not isinstance(given, Mapping):
        return {}
    return {str(key).replace("-", "_"): value for key, value in given.items()}


def adapts_head(enabled: object, modules: object) -> bool:
    """Tell whether LoRA adapters may change the output layer; vLLM asks `modules`, if given, by name."""
    return bool(enabled) and (not isinstance(modules, list) or "lm_head" in modules)
