"""vLLM's schedulers under the package's, with and without async scheduling: who gets placeholders."""

from __future__ import annotations

import pytest

from tests.support.stepping import Stepper, engine_config, make_scheduler, request
from vllm_eagle_ext.start.rules.speculative import SCHEDULER

K = 4


@pytest.fixture(scope="module")
def configured():
    return engine_config(None, scheduler_cls=SCHEDULER, max_num_batched_tokens=64)


@pytest.fixture(params=["sync", "async"])
def scheduler(request, configured):
    configured.scheduler_config.async_scheduling = request.param == "async"
    configured.scheduler_config.scheduler_cls = SCHEDULER
    return make_scheduler(configured)


def run_beside_a_long_request(scheduler, *names, steps=6):
    scheduler.add_request(request("long", 8, 400))
    run = Stepper(scheduler, lambda n, k: 0.01, lambda drafts: 0)
    run.run(3)
    for name in names:
        scheduler.add_request(request(name, 1, 40))
    run.run(steps)
    return run


def first_step(run, name):
    """Rows and drafts of a request in its first step, and the step's K."""
    step = next(step for step in run.steps if name in step.num_scheduled_tokens)
    drafts = step.scheduled_spec_decode_tokens.get(name, ())
    return step.num_scheduled_tokens[name], len(drafts), step.num_spec_tokens_to_schedule


def test_a_prompt_of_one_token_has_one_row(scheduler):
    run = run_beside_a_long_request(scheduler, "a", "b")
    assert [first_step(run, name) for name in ("a", "b")] == [(1, 0, K)] * 2
    last = run.steps[-1]
    assert last.num_scheduled_tokens == dict.fromkeys(("long", "a", "b"), 1 + K)
    assert all(step.num_spec_tokens_to_schedule == K for step in run.steps)


def test_vllms_schedulers_pad_it(configured):
    """As long as this holds, ours is needed."""
    configured.scheduler_config.async_scheduling = True
    configured.scheduler_config.scheduler_cls = None
    run = run_beside_a_long_request(make_scheduler(configured), "a")
    assert first_step(run, "a") == (1 + K, K, K)


def test_vllm_decides_once_no_such_prompt_waits(scheduler):
    run = run_beside_a_long_request(scheduler, "a")
    scheduler.finish_requests(["a"], _aborted())
    run.run(1)
    assert scheduler._one_token == []
    assert scheduler.dynamic_sd_lookup is None


def test_a_prompt_that_waits_for_room_is_kept_in_mind(scheduler):
    """Eight requests may run at a time."""
    for number in range(7):
        scheduler.add_request(request(f"r{number}", 8, 40))
    run = run_beside_a_long_request(scheduler, "late", steps=2)
    assert not any("late" in step.num_scheduled_tokens for step in run.steps)
    scheduler.finish_requests(["r0"], _aborted())
    run.run(2)
    assert first_step(run, "late") == (1, 0, K)


def _aborted():
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def test_a_chunk_of_a_streaming_session_is_not_waited_for(scheduler):
    """vLLM copies a later chunk into the session, and drops the request that brought it."""
    first = request("session", 8, 40)
    first.resumable = True
    scheduler.add_request(first)
    run = Stepper(scheduler, lambda n, k: 0.01, lambda drafts: 0)
    run.run(2)
    later = request("session", 1, 40)
    later.resumable = True
    scheduler.add_request(later)
    assert scheduler._one_token == []
