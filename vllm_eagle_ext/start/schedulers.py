# SPDX-License-Identifier: Apache-2.0
"""vLLM's schedulers, with prompts of one token left as they are, for targets with recurrent states.

Symptom: a prompt of one token that joins running requests gets a wrong text.
Cause: vLLM pads a new request with one token to 1 + K rows, so that the step fits a captured graph,
    also if nothing of the request is computed yet. V1 then verifies these rows from the state that the
    block's last owner left. V2 reads the K placeholders as tokens of the prompt. Attention never looks
    at such rows, but a recurrent state takes them in.
Seam: `scheduler_cls`, vLLM's own argument.
REMOVE WHEN `Scheduler.schedule` pads only requests with computed tokens.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class _KeepsPrompts(Scheduler):
    """Differences from the parent: while a prompt of one token waits, the step has a schedule of K, with
    which vLLM pads no request. All its entries are K."""

    dynamic_sd_lookup: list[int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._one_token: list[Request] = []
        self._always_k = [self.num_spec_tokens] * (1 + self.max_num_running_reqs)

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if request.num_tokens == 1 and self._waits(request):
            self._one_token.append(request)

    def _waits(self, request: Request) -> bool:
        """Tell whether a request waits; one that vLLM copied into its streaming session does not."""
        return self.requests.get(request.request_id) is request and not request.is_finished()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if not self._one_token or self.dynamic_sd_lookup is not None:
            return super().schedule(*args, **kwargs)
        # A preempted request with a token of its own starts again with two.
        self._one_token = [r for r in self._one_token if r.num_tokens == 1 and self._waits(r)]
        self.dynamic_sd_lookup = self._always_k
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.dynamic_sd_lookup = None


class _AsyncKeepsPrompts(_KeepsPrompts, AsyncScheduler):
    pass


def build_scheduler(*, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """Build what vLLM would have built; vLLM calls this in a class's place."""
    is_async = vllm_config.scheduler_config.async_scheduling
    chosen = _AsyncKeepsPrompts if is_async else _KeepsPrompts
    return chosen(vllm_config=vllm_config, **kwargs)
