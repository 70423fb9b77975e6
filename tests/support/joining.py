"""Requests that join and end while others run, and what the scheduler asked of each step meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def generate(
    llm: Any, prompts: Sequence[list[int]], params: Sequence[Any], joins: Sequence[int]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Add request i before step `joins[i]`.

    Returns:
        The answers in the order of the prompts, and per step: "k", the drafts that it asks of each
        request; "verified", per request of the step the drafts that it verifies.
    """
    engine = llm.llm_engine
    steps: list[dict[str, Any]] = []
    scheduler = engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule

    def noted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        verified = output.scheduled_spec_decode_tokens
        steps.append(
            {
                "k": output.num_spec_tokens_to_schedule,
                "verified": {r: len(verified.get(r, ())) for r in output.num_scheduled_tokens},
            }
        )
        return output

    first = llm.request_counter.counter
    answers: dict[str, Any] = {}
    scheduler.schedule = noted
    try:
        waiting, count = sorted(range(len(prompts)), key=lambda i: joins[i]), 0
        while waiting or engine.has_unfinished_requests():
            while waiting and (joins[waiting[0]] <= count or not engine.has_unfinished_requests()):
                i = waiting.pop(0)
                engine.add_request(str(first + i), {"prompt_token_ids": prompts[i]}, params[i])
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = output
            count += 1
    finally:
        scheduler.schedule = schedule
    for _ in prompts:
        next(llm.request_counter)
    return [answers[str(first + i)] for i in range(len(prompts))], steps
