# SPDX-License-Identifier: Apache-2.0
"""What a step could cost at least, and what acceptance and measured parts say of the speed-up.

A step reads the target's weights and the caches of its requests once, and the draft's once for each of
its passes. Those bytes over the device's measured copy bandwidth bound a step's time from below;
arithmetic, launches and whatever lies between steps come on top. A model that fits into the processor's
caches is read faster than that, and may beat the bound. It is a bound of bytes alone: kernels that
recurrent states go through on a GPU may be held up by their instructions instead (docs/dev/gpu.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_eagle_ext.measure.bench.results import Split, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    expected_speedup: float  # acceptance length over what draft and verification cost in plain steps
    bound_step_s: float
    bound_speedup: float  # with both steps at their bound
    limit: str  # the kind of which most bytes are
    of_bound: float  # the bound over the worker's measured time; 1 where only bytes count


def theory(
    *,
    plain_step_s: float,
    split: Split,
    acceptance_length: float,
    traffic: Traffic,
    context_tokens: float,
    concurrency: int,
    k: int,
    plain: Traffic | None = None,
) -> Theory:
    """What parts and bytes of a step say of its speed-up.

    Args:
        plain_step_s: a step without a draft at the same concurrency.
        acceptance_length: the bonus included.
        context_tokens: of one request, mean over the steps.
        plain: an engine's without a draft, where it was taken: its state blocks lack recorded inputs.
    """
    step_s = split.draft_s + split.target_s
    moved = step_bytes(traffic, context_tokens=context_tokens, concurrency=concurrency, k=k)
    alone = step_bytes(plain or traffic, context_tokens=context_tokens, concurrency=concurrency, k=0)
    # One bandwidth for both: two measurements of the same device differ by noise alone.
    bound_s, bound_alone_s = (sum(n.values()) / traffic.copy_bytes_per_s for n in (moved, alone))
    return Theory(
        expected_speedup=acceptance_length * plain_step_s / step_s,
        bound_step_s=bound_s,
        bound_speedup=acceptance_length * bound_alone_s / bound_s,
        limit=max(moved, key=lambda kind: moved[kind]),
        of_bound=bound_s / step_s,
    )


def step_bytes(
    traffic: Traffic, *, context_tokens: float, concurrency: int, k: int
) -> Mapping[str, float]:
    """Bytes that one worker moves in a step, by kind; kinds that it lacks are left out.

    `k` = 0 is a step without a draft.
    """
    cached = context_tokens * concurrency
    passes = min(k, 1) if traffic.parallel_drafts else k
    # A state is read once, and written to a block per token as far as there are blocks.
    states = concurrency * (1 + min(k + 1, traffic.state_blocks))
    experts = distinct_experts(traffic.experts, traffic.experts_per_token, concurrency * (k + 1))
    found = {
        "target weights": traffic.target_weights,
        "target experts": traffic.target_experts * experts / max(traffic.experts, 1),
        "target KV": traffic.target_kv_per_token * cached,
        "recurrent state": traffic.state_per_request * states,
        "draft weights": traffic.draft_weights * passes + traffic.draft_fusion * min(k, 1),
        "draft KV": traffic.draft_kv_per_token * cached * passes,
    }
    return {kind: float(size) for kind, size in found.items() if size}


def distinct_experts(experts: int, per_token: int, tokens: int) -> float:
    """Expected number of experts of a layer that `tokens` reach; even routing, so an upper bound."""
    return experts * (1 - (1 - per_token / experts) ** tokens) if experts else 0.0


def expected_acceptance_length(acceptance: Sequence[float], k: int) -> float:
    """1 + the share of all drafts whose token at each position was accepted, as vLLM counts it."""
    return 1 + sum(acceptance[:k])


def predicted_speedups(
    acceptance: Sequence[float], *, plain_step_s: float, split: Split, k: int, parallel_drafts: bool
) -> dict[int, float]:
    """Speed-up for each number of drafts up to the measured `k`.

    A pass of the draft costs the k-th part of what all cost, and one pass in parallel all of it; the
    verification grows evenly from a plain step to the measured one.
    """
    found = {}
    for fewer in range(1, k + 1):
        part = fewer / k
        draft_s = split.draft_s * (1 if parallel_drafts else part)
        verify_s = plain_step_s + (split.target_s - plain_step_s) * part
        found[fewer] = (
            expected_acceptance_length(acceptance, fewer) * plain_step_s / (draft_s + verify_s)
        )
    return found


def best_k(speedups: Mapping[int, float]) -> int:
    """0 where no number of drafts is faster than none."""
    best = max(speedups, key=lambda k: speedups[k], default=0)
    return best if best and speedups[best] > 1 else 0
