"""vLLM's real schedulers, stepped as its engine core steps them, with arithmetic in place of a model.

What is replaced: the worker, whose outputs are made here (one token for ever; of a request's drafts as
many accepted as `accepts` says), and time. What is vLLM's: scheduling, KV-cache blocks, requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from tests.support.engine import TINY
from vllm_eagle_ext import plugin

BLOCK = 16
TOKEN = 7


def engine_config(schedule: Any, **engine: Any) -> Any:
    """vLLM's config of the tiny pair under a schedule of K by the number of requests."""
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    draft = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4}
    asked = {"max_num_seqs": 8, "max_model_len": 1024, "enable_prefix_caching": False} | engine
    return EngineArgs(
        model=str(TINY / "target"),
        speculative_config=draft | {"num_speculative_tokens_per_batch_size": schedule},
        **asked,
    ).create_engine_config()


def make_scheduler(config: Any, *, blocks: int = 512) -> Any:
    """Build the scheduler of an engine's config as vLLM's engine core does, for one attention layer."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def request(name: str, prompt: int, tokens: int, **asked: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, **asked)
    return Request(name, [1] * prompt, params, None)


class Stepper:
    """Runs an engine core's loop; an asynchronous one schedules a step before the last one's output."""

    def __init__(
        self, scheduler: Any, seconds: Callable[[int, int], float], accepts: Callable[[int], int]
    ) -> None:
        """
        Args:
            seconds: requests and K -> time of a step.
            accepts: number of a request's drafts -> how many of them are accepted.
        """
        self.scheduler = scheduler
        self.seconds = seconds
        self.accepts = accepts
        self.is_async = scheduler.vllm_config.scheduler_config.async_scheduling
        self.now = 0.0
        self.steps: list[Any] = []  # SchedulerOutput
        self.outputs: list[Any] = []  # EngineCoreOutputs per step
        self._running: deque[Any] = deque()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.scheduler.schedule()
            self.steps.append(step)
            requests = self.scheduler.requests
            # As the worker knows them: an asynchronous loop schedules the next step before the output.
            in_prompt = {n for n in step.num_scheduled_tokens if requests[n].is_prefill_chunk}
            self._running.append((step, in_prompt))
            if not self.is_async or len(self._running) > 1:
                self._finish(*self._running.popleft())

    def _finish(self, step: Any, in_prompt: set[str]) -> None:
        scheduler, n = self.scheduler, len(step.num_scheduled_tokens)
        self.now += self.seconds(n, step.num_spec_tokens_to_schedule)
        drafted = {
            name: scheduler.requests[name]
            for name in step.num_scheduled_tokens
            if name in scheduler.requests
        }
        output = self._output(step, in_prompt)
        self.outputs.append(scheduler.update_from_output(step, output))
        if not self.is_async:
            self._hand_over(step, [name for name in drafted if name in scheduler.requests])

    def _output(self, step: Any, in_prompt: set[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        sampled = []
        for name in names:
            drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
            sampled.append([] if name in in_prompt else [TOKEN] * (1 + self.accepts(drafts)))
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=sampled,
        )

    def _hand_over(self, step: Any, names: list[str]) -> None:
        from vllm.v1.outputs import DraftTokenIds

        drafts = [[TOKEN] * step.num_spec_tokens_to_schedule for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))
