# SPDX-License-Identifier: Apache-2.0
"""vLLM's schedulers with the K that the requests ask for, so that one engine measures every K.

    LLM(scheduler_cls="vllm_eagle_ext.measure.engine.held_length.build_holding_scheduler")

next to a schedule of vLLM's own, `num_speculative_tokens_per_batch_size`, that mentions each K: vLLM
captures CUDA graphs for those. Only the engines of `bench --schedule` name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

SCHEDULER = "vllm_eagle_ext.measure.engine.held_length.build_holding_scheduler"
ASKED = "eagle_ext_draft_length"  # of SamplingParams.extra_args


def schedule_of(lengths: Sequence[int]) -> list[list[int]]:
    """Make a schedule that has each length once: the n-th for n requests, the longest for all above."""
    return [[n, n, k] for n, k in enumerate(lengths, start=1)]


def build_holding_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """Build a subclass of the scheduler that vLLM would have built; vLLM calls this for a class."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    parent = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    found = _holding(parent)(*args, vllm_config=vllm_config, **kwargs)
    return found


def _holding(parent: Any) -> Any:
    class HoldsDraftLength(parent):
        """Drafts as many tokens in a step as its requests ask for, the most of them."""

        def _update_after_schedule(self, scheduler_output: Any) -> None:
            """Set the step's K before the parent does, which under async scheduling makes so many
            placeholders for the next step's drafts."""
            asked = [
                found
                for name in scheduler_output.num_scheduled_tokens
                if (found := asked_length(self.requests[name].sampling_params)) is not None
            ]
            if asked:
                scheduler_output.num_spec_tokens_to_schedule = max(asked)
            super()._update_after_schedule(scheduler_output)

    return HoldsDraftLength


def asked_length(sampling_params: Any) -> int | None:
    """Return the K that a request asks for; None where it leaves K to vLLM."""
    extra = getattr(sampling_params, "extra_args", None) or {}
    return extra.get(ASKED)
