# SPDX-License-Identifier: Apache-2.0
"""Counts the state blocks that a request takes in each recurrent layer, names what they hold, and
chooses replay or one state block per draft token, by what is asked for and possible.

The count is vLLM's own: a state block is a KV-cache block of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.memory.device import Device

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
# `per_token`: vLLM keeps a state after each draft token. `replay`: only the committed state is kept, and
# the accepted tokens of a step are applied to it from their recorded inputs.
Scheme = Literal["per_token", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBlocks:
    """Lists the state blocks of one request, next to the one that holds its committed state."""

    draft_tokens: int  # a state after each of them
    at_block_boundary: bool  # prefix caching keeps the state at the end of a KV-cache block
    scratch: bool  # the CPU's operator writes into state blocks, so that replay needs one to discard
    exported: bool = False  # FlashInfer's prefill writes the state at a block's end while it goes on

    @property
    def count(self) -> int:
        return 1 + self.draft_tokens + self.at_block_boundary + self.exported + self.scratch

    def __str__(self) -> str:
        held = ["committed state"]
        if self.draft_tokens:
            held.append(f"{self.draft_tokens} draft token{'' if self.draft_tokens == 1 else 's'}")
        if self.at_block_boundary:
            held.append("block boundary of prefix caching")
        if self.exported:
            held.append("state exported by the prefill")
        if self.scratch:
            held.append("CPU scratch")
        return f"{counted(self.count)} per request ({', '.join(held)})"


def state_blocks(
    scheme: Scheme, *, k: int, prefix_caching: bool, cpu: bool, prefill_exports: bool = False
) -> StateBlocks:
    """Count the blocks that `scheme` takes for `k` draft tokens.

    Args:
        prefill_exports: vLLM's prefill can export states, as `Device.prefill_exports` says.
    """
    replays = scheme == "replay"
    return StateBlocks(
        draft_tokens=0 if replays else k, at_block_boundary=prefix_caching, scratch=replays and cpu,
        exported=prefix_caching and prefill_exports,
    )  # fmt: skip


def counted(count: int) -> str:
    return "1 state block" if count == 1 else f"{count} state blocks"


def record_width(key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> int:
    """Count the elements recorded for one verified token in one layer: key, value, a and b."""
    return key_heads * key_dim + value_heads * value_dim + 2 * value_heads


HybridState = Literal["auto", "replay", "per_token"]  # the option
# On a GPU. Below, 1 + K state blocks are few, and a commit costs what it saves.
LEAST_K = 3
OPTION = "additional_config.eagle_ext.hybrid_state"


def runner_obstacles(
    platform: str, runner: str, dtype: str, *, prefix_caching: bool
) -> Iterator[Problem]:
    """List what of device, model runner and dtype replay cannot serve."""
    on_v1, on_cpu, v2 = runner == "v1", platform == "cpu", "VLLM_USE_V2_MODEL_RUNNER=1"
    # whether it is there, field, value, what is allowed, remedy
    for is_there, field, value, allowed, remedy in (
        (platform not in ("cpu", "cuda"), "platform", platform, "cpu or cuda",
         "leave hybrid_state at per_token here"),
        # A prompt of 1 + K tokens may take the graph of verified tokens there (vllm#53051).
        (on_v1 and platform == "cuda", "model runner", "v1", "v2 on a GPU", v2),
        (on_v1 and prefix_caching, "enable_prefix_caching", True, "false on vLLM's V1 runner",
         f"--no-enable-prefix-caching, or the V2 runner ({v2})"),
        # vLLM's kernels there take nothing else; from 0.33 on it hands float16 back to the layer.
        (on_cpu and dtype != "bfloat16", "dtype", dtype, "bfloat16 on a CPU", "--dtype bfloat16"),
    ):  # fmt: skip
        if is_there:
            yield Problem(field=field, value=value, allowed=allowed, remedy=remedy)


def planned_prefix_caching(architecture: str, platform: str, asked: bool | None) -> bool | None:
    """Turn prefix caching off where it would crash and nobody asked for it; None is vLLM's default."""
    crashes = architecture in REPLAYING_TARGETS and platform == "cpu"
    return False if asked is None and crashes else asked


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


def choose(
    asked: HybridState, *, k: int, device: Device, prefix_caching: bool, obstacles: Sequence[Problem]
) -> Choice:
    """Choose how the recurrent states of a run are kept.

    Args:
        asked: the option hybrid_state. Replay that is asked for is taken.
        obstacles: what replay cannot serve.
    """
    scheme, reason = _scheme(asked, k, obstacles, on_cpu=device.on_cpu)
    blocks = state_blocks(
        scheme, k=k, prefix_caching=prefix_caching, cpu=device.on_cpu,
        prefill_exports=device.prefill_exports,
    )  # fmt: skip
    return Choice(scheme, reason, blocks)


def _scheme(
    asked: HybridState, k: int, obstacles: Sequence[Problem], *, on_cpu: bool
) -> tuple[Scheme, str]:
    if asked != "auto":
        return asked, f"{OPTION} is {asked!r}"
    if obstacles:
        reasons = (f"{problem.field} is {problem.value!r}" for problem in obstacles)
        return "per_token", "replay is not possible: " + "; ".join(reasons)
    drafts = "1 draft token" if k == 1 else f"{k} draft tokens"
    if on_cpu:
        return "replay", f"{drafts}, on a CPU"
    if k < LEAST_K:
        few = f"{drafts} save{'s' * (k == 1)} little"
        return "per_token", f"{few}; on a GPU replay pays from {LEAST_K}"
    return "replay", drafts
