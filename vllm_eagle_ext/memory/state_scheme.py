# SPDX-License-Identifier: Apache-2.0
"""Chooses replay or one state block per draft token, by what is asked for and possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.memory.device import Device
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, Scheme, StateBlocks, state_blocks

HybridState = Literal["auto", Scheme]  # the option
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


def planned_prefix_caching(architecture: str, platform: str, given: bool | None) -> bool | None:
    """Turn prefix caching off where it would crash and nobody asked for it; None is vLLM's default."""
    crashes = architecture in REPLAYING_TARGETS and platform == "cpu"
    return False if given is None and crashes else given


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
    hybrid_state: HybridState,
    *,
    k: int,
    device: Device,
    prefix_caching: bool,
    obstacles: Sequence[Problem],
) -> Choice:
    """Choose how the recurrent states of a run are kept.

    Args:
        hybrid_state: the option. Replay that is asked for is taken.
        obstacles: what replay cannot serve.
    """
    scheme, reason = _scheme(hybrid_state, k, obstacles, on_cpu=device.on_cpu)
    blocks = state_blocks(
        scheme, k=k, prefix_caching=prefix_caching, cpu=device.on_cpu,
        prefill_exports=device.prefill_exports,
    )  # fmt: skip
    return Choice(scheme, reason, blocks)


def _scheme(
    option: HybridState, k: int, obstacles: Sequence[Problem], *, on_cpu: bool
) -> tuple[Scheme, str]:
    if option != "auto":
        return option, f"{OPTION} is {option!r}"
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
