# SPDX-License-Identifier: Apache-2.0
"""vLLM's schedulers with K chosen for each step, and the function that `scheduler_cls` names.

A step carries its K in `SchedulerOutput.num_spec_tokens_to_schedule`, which both runners obey: so many
tokens are drafted behind the step and verified in the next one. Requests may hold drafts of different
lengths meanwhile; vLLM's scheduler and runners count each request's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from vllm_eagle_ext.draft_length.controller import DraftLengthController
from vllm_eagle_ext.draft_length.length_figures import LengthFigures
from vllm_eagle_ext.draft_length.menu import menu_of
from vllm_eagle_ext.draft_length.switch_log import SwitchLog
from vllm_eagle_ext.draft_length.verified_drafts import VerifiedDraft, VerifiedDrafts


class _ChoosesDraftLength:
    """Overrides what a scheduler does behind its own decisions; both parents are vLLM's."""

    requests: dict[str, Any]
    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, *args: Any, vllm_config: Any, **kwargs: Any) -> None:
        super().__init__(*args, vllm_config=vllm_config, **kwargs)  # type: ignore[call-arg]
        schedule = vllm_config.speculative_config.num_speculative_tokens_per_batch_size
        self.controller = DraftLengthController(menu_of(schedule))
        self._switch_log = SwitchLog()
        self._figures = LengthFigures(self.controller)
        self._drafts = VerifiedDrafts()
        self._context = 0  # tokens of the requests that were scheduled last, those of the step included
        self._finished_at = 0.0  # when the last step's output arrived, in seconds
        self._last_length: int | None = None  # its K; None: the engine was idle

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """Set the step's K before the parent does, which under async scheduling makes so many
        placeholders for the next step's drafts."""
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduled:
            requests = self.requests
            self._context = sum(
                requests[name].num_computed_tokens + rows for name, rows in scheduled.items()
            )
            length = self.controller.next_length(len(scheduled), self._context)
            scheduler_output.num_spec_tokens_to_schedule = length
            self._figures.count(length, len(scheduled))
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Observe the step before the parent, which cuts the tokens of a request that ends."""
        self._observe(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if not self.has_unfinished_requests():  # type: ignore[attr-defined]
            self._last_length = None
        return outputs

    def _observe(self, step: SchedulerOutput, output: Any) -> None:
        """Time the step from the previous one's output to its own: with async scheduling, too, that is
        what the device needs for one, and nothing waits for it."""
        now = self.clock()
        (made_at, drafts), length = self._drafts.take(step), step.num_spec_tokens_to_schedule
        if drafts and output.sampled_token_ids:
            self.controller.observe_drafts(made_at, _outcomes(drafts, output))
        requests = len(step.num_scheduled_tokens)
        if requests and self._last_length == length:
            self.controller.observe_step(
                requests, self._context, length, now - self._finished_at, _prompt_tokens(step)
            )
        self._finished_at, self._last_length = now, length if requests else None
        for change in self.controller.take_changes():
            self._switch_log.record(change)
        self._switch_log.speak(now)
        self._figures.write(self.controller)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Note which drafts a grammar cuts; vLLM calls this without async scheduling alone."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self._drafts.note_cuts(draft_token_ids, self.requests)


class DraftLengthScheduler(_ChoosesDraftLength, Scheduler):
    """Chooses K without async scheduling."""


class AsyncDraftLengthScheduler(_ChoosesDraftLength, AsyncScheduler):
    """Chooses K one step ahead: a step is scheduled while the one before it runs."""


def build_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """Build the subclass of the scheduler that vLLM would have built; vLLM calls this for a class.

    Without a schedule, as where engine arguments outlive the option, there is nothing to choose from,
    and vLLM's own is built.
    """
    is_async = vllm_config.scheduler_config.async_scheduling
    speculative = vllm_config.speculative_config
    chosen: type[Scheduler]
    if speculative is None or not speculative.num_speculative_tokens_per_batch_size:
        chosen = AsyncScheduler if is_async else Scheduler
    else:
        chosen = AsyncDraftLengthScheduler if is_async else DraftLengthScheduler
    return chosen(*args, vllm_config=vllm_config, **kwargs)


def _outcomes(drafts: dict[str, VerifiedDraft], output: Any) -> list[tuple[int, int]]:
    """Return, per request with drafts, how many were judged and how many of them accepted.

    A request that was not sampled, such as one that was aborted, has no outcome.
    """
    sampled, rows = output.sampled_token_ids, output.req_id_to_index
    return [
        draft.outcome(len(sampled[row]) - 1)
        for name, draft in drafts.items()
        if (row := rows.get(name)) is not None and sampled[row]
    ]


def _prompt_tokens(step: SchedulerOutput) -> int:
    """Return how many rows a step has beside the one of each request and its drafts."""
    drafts = sum(map(len, step.scheduled_spec_decode_tokens.values()))
    return step.total_num_scheduled_tokens - len(step.num_scheduled_tokens) - drafts
