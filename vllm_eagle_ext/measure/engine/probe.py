# SPDX-License-Identifier: Apache-2.0
"""What vLLM takes of this package into an engine that is measured: a worker's methods and a scheduler.

Only the engines that `bench` and `verify` start name them, as `worker_extension_cls`, which vLLM mixes
into its worker, and `scheduler_cls`. They import nothing of this package's plugin and change nothing
until they are asked to, so that they measure an engine of stock vLLM alike.

The scheduler is vLLM's own with the K that the requests ask for, so that one engine of
`bench --schedule` measures every K. vLLM's schedule, `num_speculative_tokens_per_batch_size`, must
mention each K: it captures CUDA graphs for those.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class StepProbe:
    """Methods for `LLM.collective_rpc`; vLLM refuses names that its worker has, hence the prefix."""

    model_runner: Any
    vllm_config: Any

    def eagle_ext_facts(self) -> dict[str, Any]:
        from vllm.platforms import current_platform

        runner = self.model_runner
        draft = runner.get_draft_model()
        groups = [*runner.attn_groups, *getattr(getattr(runner, "speculator", None), "attn_groups", [])]
        return {
            "target": type(runner.get_model()).__name__,
            "drafter": type(draft).__name__ if draft is not None else None,
            "attention": sorted({layers.backend.get_name() for group in groups for layers in group}),
            "runner": "v2" if self.vllm_config.use_v2_model_runner else "v1",
            "state": self._eagle_ext_state(),
            "device": current_platform.get_device_name(),
            "kv_cache_blocks": runner.kv_cache_config.num_blocks,
            "plugin": "vllm_eagle_ext.plugin" in sys.modules,
        }

    def eagle_ext_synthetic_acceptance(self) -> None:
        """Let a CPU's V1 runner take one, as all others do."""
        from vllm_eagle_ext.compat import add_synthetic_acceptance

        add_synthetic_acceptance()

    def _eagle_ext_state(self) -> str | None:
        """Say how recurrent states are kept; None without any, or without a draft."""
        from vllm.v1.kv_cache_interface import MambaSpec

        groups = self.model_runner.kv_cache_config.kv_cache_groups
        if not self.vllm_config.speculative_config or not any(
            isinstance(group.kv_cache_spec, MambaSpec) for group in groups
        ):
            return None
        ours = sys.modules.get("vllm_eagle_ext.replay.layer")  # not loaded: no layer is ours
        layers = self.vllm_config.compilation_config.static_forward_context.values()  # with a cache
        replay = ours is not None and any(
            isinstance(layer, ours.ReplayGatedDeltaNetAttention) for layer in layers
        )
        return "replay" if replay else "per_token"


SCHEDULER = "vllm_eagle_ext.measure.engine.probe.build_holding_scheduler"
ASKED = "eagle_ext_draft_length"  # of SamplingParams.extra_args


def schedule_of(lengths: Sequence[int]) -> list[list[int]]:
    """Make a schedule that has each length once: the n-th for n requests, the longest for all above."""
    return [[n, n, k] for n, k in enumerate(lengths, start=1)]


def build_holding_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """Build a subclass of the scheduler that vLLM would have built; vLLM calls this for a class."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    parent = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler

    class HoldsDraftLength(parent):  # type: ignore[misc, valid-type]
        """Drafts as many tokens in a step as its requests ask for, the most of them."""

        def _update_after_schedule(self, scheduler_output: Any) -> None:
            """Set the step's K before the parent does, which under async scheduling makes so many
            placeholders for the next step's drafts."""
            params = (
                self.requests[name].sampling_params for name in scheduler_output.num_scheduled_tokens
            )
            extra = (getattr(each, "extra_args", None) or {} for each in params)
            if lengths := [arguments[ASKED] for arguments in extra if ASKED in arguments]:
                scheduler_output.num_spec_tokens_to_schedule = max(lengths)
            super()._update_after_schedule(scheduler_output)

    return HoldsDraftLength(*args, vllm_config=vllm_config, **kwargs)
