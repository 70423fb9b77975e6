# SPDX-License-Identifier: Apache-2.0
"""Chooses replay or one state block per draft token, by what is asked for, possible and worth it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.memory.kernel_times import kernel_times
from vllm_eagle_ext.memory.state_blocks import Scheme, StateBlocks, counted, state_blocks

HybridState = Literal["auto", "replay", "per_token"]

# Architecture of a target -> the one that replays its states. Names carry `EagleExt`, so that a node
# without this package fails with a name that tells.
REPLAYING_TARGETS = {
    "Qwen3NextForCausalLM": "Qwen3NextEagleExtForCausalLM",
    "Qwen3_5ForCausalLM": "Qwen3_5EagleExtForCausalLM",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeEagleExtForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5EagleExtForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeEagleExtForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration": "InternS2PreviewEagleExtForConditionalGeneration",
    "InternS2MobiusForConditionalGeneration": "InternS2MobiusEagleExtForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration": "MiniCPMV4_6EagleExtForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration": "MiniCPMV4_7EagleExtForConditionalGeneration",
}
# Where no GPU's times are known. Below, 1 + K state blocks are few, and a commit costs what it saves.
LEAST_K = 3
OPTION = "additional_config.eagle_ext.hybrid_state"
SCHEDULE = "speculative_config.num_speculative_tokens_per_batch_size"
ADAPTIVE_OPTION = "additional_config.eagle_ext.adaptive_verification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Holds what of an engine's configuration the choice depends on."""

    architecture: str
    k: int
    runner: Literal["v1", "v2"]
    platform: str  # "cpu", "cuda", ..
    prefix_caching: bool
    has_triton: bool = True
    dtype: str = "bfloat16"  # of the target, as it is served
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    kv_connector: str | None = None
    lora: bool = False
    packs_convolutions: bool = True  # vLLM's, of bfloat16 weights on a CPU; True where it is not known
    microbatches: bool = False
    prefill_exports: bool = False  # of states, for which vLLM reserves a block more
    capability: tuple[int, int] | None = None  # of the GPU; None: a CPU, or not known
    state_width: int = 4  # bytes of an element of a recurrent state
    kernels: str = "auto"  # the option `replay_kernels`
    not_chunked: str | None = None  # why the chunked kernels cannot run the layers, if so
    k_by_batch_size: object = None  # vLLM's schedule, where vLLM follows it
    short_drafts_crash: bool = False  # this vLLM's CPU kernels, with one state block per draft token
    adaptive_verification: bool = False  # vLLM's key, which trims drafts on the device
    adaptive_verification_allowed: bool = False  # the option of this package

    @property
    def per_token_crashes(self) -> bool:
        """Find out whether a schedule of K meets kernels that need all K drafts."""
        return bool(self.k_by_batch_size) and self.short_drafts_crash and self.platform == "cpu"

    @property
    def needs_replay(self) -> bool:
        """Find out whether some steps verify fewer drafts than the per-token scheme could serve."""
        return self.per_token_crashes or self.per_token_misreads or self.adaptive_verification

    @property
    def per_token_misreads(self) -> bool:
        """Find out whether vLLM's CPU kernels would take packed weights of a convolution for plain."""
        packed = self.packs_convolutions and self.dtype == "bfloat16"
        return self.lora and self.platform == "cpu" and packed


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Describes one property of a configuration that replay cannot serve."""

    field: str
    value: object
    allowed: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field} is {self.value!r}"


def obstacles(situation: Situation) -> Iterator[Obstacle]:
    """List everything in this configuration that replay cannot serve."""
    s = situation
    if s.platform not in ("cpu", "cuda"):
        yield Obstacle("platform", s.platform, "cpu or cuda", "leave hybrid_state at per_token here")
    if s.runner == "v1" and s.platform == "cuda":
        # A prompt of 1 + K tokens may take the graph of verified tokens there (vllm#53051).
        yield Obstacle("model runner", "v1", "v2 on a GPU", "VLLM_USE_V2_MODEL_RUNNER=1")
    if s.runner == "v1" and s.prefix_caching:
        yield Obstacle(
            "enable_prefix_caching",
            True,
            "false on vLLM's V1 runner",
            "--no-enable-prefix-caching, or the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1)",
        )
    if s.platform == "cpu" and s.dtype != "bfloat16":
        # vLLM's kernels there take nothing else; from 0.33 on it hands float16 back to the layer.
        yield Obstacle("dtype", s.dtype, "bfloat16 on a CPU", "--dtype bfloat16")
    if s.pipeline_parallel_size > 1:
        yield Obstacle("pipeline_parallel_size", s.pipeline_parallel_size, "1", "use tensor parallelism")
    if s.context_parallel_size > 1:
        yield Obstacle("context parallel size", s.context_parallel_size, "1", "use tensor parallelism")
    if s.kv_connector is not None:
        yield Obstacle("kv_transfer_config", s.kv_connector, "none", "serve without a KV connector")
    if s.microbatches:
        yield Obstacle("enable_dbo", True, "false", "serve without dual batch overlap")


def refuse_without_states(architecture: str, asked: HybridState) -> None:
    """Refuse replay for a target without recurrent states.

    Raises:
        HybridStateError: replay is asked for, and the target keeps no recurrent states.
    """
    if asked == "replay" and architecture not in REPLAYING_TARGETS:
        raise HybridStateError(
            field=OPTION,
            value="replay",
            allowed=f"'auto' or 'per_token' for {architecture}; 'replay' for "
            + ", ".join(REPLAYING_TARGETS),
            remedy="leave the option out",
        )


def planned_prefix_caching(architecture: str, platform: str, asked: bool | None) -> bool | None:
    """Turn prefix caching off where it would crash and nobody asked for it; None is vLLM's default."""
    crashes = architecture in REPLAYING_TARGETS and platform == "cpu"
    return False if asked is None and crashes else asked


def refuse_what_crashes(situation: Situation) -> None:
    """Refuse what crashes later, with either scheme.

    Raises:
        HybridStateError: vLLM's V1 runner without Triton crashes at the first block boundary when
            prefix caching meets drafts on such a target.
    """
    s = situation
    if s.runner == "v1" and s.prefix_caching and not s.has_triton:
        raise HybridStateError(
            field="enable_prefix_caching",
            value=True,
            allowed=f"false for {s.architecture} with drafts on vLLM's V1 runner without Triton, which "
            "crashes otherwise (run_fused_precopy has no CPU kernel)",
            remedy="--no-enable-prefix-caching, or LLM(enable_prefix_caching=False)",
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Says which scheme is taken, why, and which state blocks it takes."""

    scheme: Scheme
    reason: str
    blocks: StateBlocks

    @property
    def replays(self) -> bool:
        return self.scheme == "replay"

    def __str__(self) -> str:
        return f"{self.scheme}, {self.blocks}; {self.reason}"


def choose(situation: Situation, asked: HybridState) -> Choice:
    """Choose how the recurrent states of a run are kept.

    Raises:
        HybridStateError: replay is asked for and cannot be had.
    """
    scheme, reason = _scheme(situation, asked)
    return Choice(scheme, reason, _blocks(situation, scheme))


def refuse_uneven_drafts(situation: Situation, choice: Choice) -> None:
    """Refuse steps of fewer than K drafts where the scheme that was chosen cannot serve them.

    Raises:
        HybridStateError: a schedule of K with one state block per draft token, which crashes vLLM's CPU
            kernels or gives wrong texts; drafts trimmed on the device with that scheme, or unasked for.
    """
    s = situation
    if s.per_token_crashes and not choice.replays:
        raise HybridStateError(
            field=SCHEDULE,
            value=s.k_by_batch_size,
            allowed=f"a fixed K for {s.architecture} with one state block per draft token on a CPU, "
            "where this vLLM crashes or gives wrong texts in steps of fewer drafts (0.33 does not); the "
            f"scheme was chosen because: {choice.reason}",
            remedy="leave the key out, or keep the states by replay: hybrid_state 'auto' or 'replay'",
        )
    if s.per_token_misreads and not choice.replays:
        raise HybridStateError(
            field="enable_lora",
            value=True,
            allowed=f"false for {s.architecture} with drafts and one state block per draft token on a "
            "CPU that packs weights of convolutions, which vLLM's kernels then take for plain ones, and "
            f"texts are wrong; the scheme was chosen because: {choice.reason}",
            remedy="keep the states by replay, hybrid_state 'auto' or 'replay'; or serve no adapters",
        )
    if s.adaptive_verification and not (choice.replays and s.adaptive_verification_allowed):
        raise HybridStateError(
            field="speculative_config.enable_adaptive_verification",
            value=True,
            allowed=f"false for {s.architecture}; true with states kept by replay and {ADAPTIVE_OPTION} "
            f"true, untested on GPUs. Chosen here: {choice.scheme}, {choice.reason}",
            remedy='leave the key out, or ask for both: {"eagle_ext": {"hybrid_state": "replay", '
            '"adaptive_verification": true}}',
        )


def _blocks(situation: Situation, scheme: Scheme) -> StateBlocks:
    return state_blocks(
        scheme, k=situation.k, prefix_caching=situation.prefix_caching, cpu=situation.platform == "cpu",
        prefill_exports=situation.prefill_exports,
    )  # fmt: skip


def _scheme(situation: Situation, asked: HybridState) -> tuple[Scheme, str]:
    found = list(obstacles(situation))
    if asked == "per_token":
        return "per_token", f"{OPTION} is 'per_token'"
    if asked == "replay":
        if found:
            raise _refused_scheme(found)
        return "replay", f"{OPTION} is 'replay'"
    if found:
        return "per_token", "replay is not possible: " + "; ".join(map(str, found))
    if situation.per_token_crashes or situation.per_token_misreads:
        return "replay", "vLLM's CPU kernels cannot serve one state block per draft token here"
    return _by_model(situation) or _by_k(situation.k)


def _by_k(k: int) -> tuple[Scheme, str]:
    if k < LEAST_K:
        few = "1 draft token saves" if k == 1 else f"{k} draft tokens save"
        return "per_token", f"{few} little; replay pays from {LEAST_K}"
    return "replay", f"{k} draft tokens"


def _by_model(situation: Situation) -> tuple[Scheme, str] | None:
    """Choose by the kernels' times on this GPU, and by the state blocks where these are about even."""
    s = situation
    if s.platform != "cuda" or s.capability is None:
        return None
    times = kernel_times(
        s.capability,
        k=s.k,
        state_width=s.state_width,
        kernels=s.kernels,
        chunked_run=s.not_chunked is None,
    )
    if times is None:
        return None
    drafts = "1 draft token" if s.k == 1 else f"{s.k} draft tokens"
    if s.not_chunked and s.kernels == "auto":
        drafts += f", no chunked kernels ({s.not_chunked})"
    replay, per_token = (_blocks(s, scheme).count for scheme in ("replay", "per_token"))
    fewer = f"{counted(replay)} instead of {per_token}"
    if not times.pays:
        return "per_token", (
            f"{drafts}: {times}. Replay would take {fewer}: ask for it with {OPTION} 'replay' if "
            "requests wait for memory"
        )
    if times.even:
        return "replay", f"{drafts}: {times}, about even, and {fewer} decide"
    return "replay", f"{drafts}: {times}, and {fewer} are kept"


def _refused_scheme(found: list[Obstacle]) -> HybridStateError:
    first, *others = found
    return HybridStateError(
        field=first.field,
        value=first.value,
        allowed=f"{first.allowed}, with {OPTION} 'replay'",
        remedy=f"{first.remedy}; or hybrid_state 'auto' or 'per_token'",
        more=[f"also: {other}. Allowed: {other.allowed}" for other in others],
    )
