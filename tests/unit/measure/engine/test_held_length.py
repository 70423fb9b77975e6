"""vLLM's own schedulers, with and without async scheduling, draft what the requests ask for."""

from __future__ import annotations

import pytest

from tests.support.stepping import Stepper, engine_config, make_scheduler, request
from vllm_eagle_ext.measure.engine.probe import ASKED, SCHEDULER, schedule_of

MENU = (0, 1, 2, 4)


@pytest.fixture(scope="module")
def configured():
    return engine_config(schedule_of(MENU), scheduler_cls=SCHEDULER, max_num_batched_tokens=64)


@pytest.fixture(params=["sync", "async"])
def scheduler(request, configured):
    configured.scheduler_config.async_scheduling = request.param == "async"
    return make_scheduler(configured)


def asking(name, length):
    made = request(name, 8, 400)
    made.sampling_params.extra_args = {"another": 3} if length is None else {ASKED: length}
    return made


def lengths(steps):
    return [step.num_spec_tokens_to_schedule for step in steps if step.num_scheduled_tokens]


@pytest.mark.parametrize("k", MENU)
def test_each_length_is_held_from_the_first_step_on(scheduler, k):
    """Eight requests, of which vLLM's own schedule would draft four tokens each."""
    for number in range(8):
        scheduler.add_request(asking(f"r{number}", k))
    run = Stepper(scheduler, lambda n, k: 0.01, lambda drafts: 0)
    run.run(12)
    assert set(lengths(run.steps)) == {k}
    last = run.steps[-1]
    assert {len(tokens) for tokens in last.scheduled_spec_decode_tokens.values()} == (
        {k} if k else set()
    )
    assert last.total_num_scheduled_tokens == 8 * (k + 1)


def test_lengths_follow_each_other_in_one_engine(scheduler):
    for k in (4, 0, 2):
        scheduler.add_request(asking(f"r{k}", k))
        run = Stepper(scheduler, lambda n, k: 0.01, lambda drafts: 0)
        run.run(6)
        assert set(lengths(run.steps)) == {k}
        from vllm.v1.request import RequestStatus

        scheduler.finish_requests([f"r{k}"], RequestStatus.FINISHED_ABORTED)


def test_requests_that_ask_for_nothing_leave_it_to_vllm(scheduler):
    """Its schedule says 1 for two requests."""
    for name in ("a", "b"):
        scheduler.add_request(asking(name, None))
    run = Stepper(scheduler, lambda n, k: 0.01, lambda drafts: 0)
    run.run(6)
    assert set(lengths(run.steps)) == {1}
