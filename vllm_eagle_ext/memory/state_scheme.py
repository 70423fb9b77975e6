# SPDX-License-Identifier: Apache-2.0
"""Chooses replay or one state block per draft token, by what is asked for and possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_eagle_ext.checkpoint.findings import Problem
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, Scheme, StateBlocks, state_blocks

# On a GPU. Below, 1 + K state blocks are few, and a commit costs what it saves.
LEAST_K = 3
OPTION = "additional_config.eagle_ext.hybrid_state"


def unsupported_by_replay(engine: EngineFacts) -> Iterator[Problem]:
    """List everything in an engine's configuration that replay cannot serve."""
    on_v1, pipeline, context = (
        engine.runner == "v1", engine.pipeline_parallel_size, engine.context_parallel_size,
    )  # fmt: skip
    elsewhere, ranks = "leave hybrid_state at per_token here", "use tensor parallelism"
    v2 = "VLLM_USE_V2_MODEL_RUNNER=1"
    no_hits = f"--no-enable-prefix-caching, or the V2 runner ({v2})"
    # whether it is there, field, value, what is allowed, remedy
    for is_there, field, value, allowed, remedy in (
        (engine.platform not in ("cpu", "cuda"), "platform", engine.platform, "cpu or cuda", elsewhere),
        # A prompt of 1 + K tokens may take the graph of verified tokens there (vllm#53051).
        (on_v1 and engine.platform == "cuda", "model runner", "v1", "v2 on a GPU", v2),
        (on_v1 and engine.prefix_caching, "enable_prefix_caching", True, "false on vLLM's V1 runner",
         no_hits),
        # vLLM's kernels there take nothing else; from 0.33 on it hands float16 back to the layer.
        (engine.on_cpu and engine.dtype != "bfloat16", "dtype", engine.dtype, "bfloat16 on a CPU",
         "--dtype bfloat16"),
        (pipeline > 1, "pipeline_parallel_size", pipeline, "1", ranks),
        (context > 1, "context parallel size", context, "1", ranks),
        (engine.kv_connector is not None, "kv_transfer_config", engine.kv_connector, "none",
         "serve without a KV connector"),
        # Both would add a record to the state, and both commit.
        (engine.vllm_replays, "use_replayssm", True, "false: with it vLLM replays this target's states",
         "leave --use-replayssm out, or leave the states to vLLM"),
        (engine.microbatches, "enable_dbo", True, "false", "serve without dual batch overlap"),
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


def choose(engine: EngineFacts) -> Choice:
    """Choose how the recurrent states of a run are kept; K is known.

    Replay that is asked for is taken: whether it can be had is for the rule `state_can_be_kept`.
    """
    scheme, reason = _scheme(engine)
    return Choice(scheme, reason, _blocks(engine, scheme))


def _blocks(engine: EngineFacts, scheme: Scheme) -> StateBlocks:
    return state_blocks(
        scheme, k=engine.k or 0, prefix_caching=engine.prefix_caching, cpu=engine.on_cpu,
        prefill_exports=engine.prefill_exports,
    )  # fmt: skip


def _scheme(engine: EngineFacts) -> tuple[Scheme, str]:
    asked = engine.options.hybrid_state
    if asked != "auto":
        return asked, f"{OPTION} is {asked!r}"
    if found := list(unsupported_by_replay(engine)):
        reasons = (f"{problem.field} is {problem.value!r}" for problem in found)
        return "per_token", "replay is not possible: " + "; ".join(reasons)
    k = engine.k or 0
    drafts = "1 draft token" if k == 1 else f"{k} draft tokens"
    if engine.on_cpu:
        return "replay", f"{drafts}, on a CPU"
    if k < LEAST_K:
        few = f"{drafts} save{'s' * (k == 1)} little"
        return "per_token", f"{few}; on a GPU replay pays from {LEAST_K}"
    return "replay", drafts
