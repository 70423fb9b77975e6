"""vLLM's own schedulers follow its schedule of K by the number of requests, 0 among its values."""

from __future__ import annotations

import pytest

from tests.support.stepping import Stepper, engine_config, make_scheduler, request

SCHEDULE = [[1, 1, 4], [2, 2, 2], [3, 3, 1], [4, 8, 0]]


@pytest.fixture(scope="module")
def configured():
    return engine_config(SCHEDULE)


@pytest.fixture(params=["sync", "async"])
def stepper(request, configured):
    configured.scheduler_config.async_scheduling = request.param == "async"
    return Stepper(make_scheduler(configured), lambda n, k: 0.01, lambda drafts: drafts // 2)


def test_k_falls_as_requests_join_and_rises_as_they_end(stepper):
    for number in range(5):
        stepper.scheduler.add_request(request(f"r{number}", 8, 400 - 60 * number))
        stepper.run(4)
    stepper.run(400)
    found = [
        (len(step.num_scheduled_tokens), step.num_spec_tokens_to_schedule)
        for step in stepper.steps
        if step.num_scheduled_tokens
    ]
    by_load = {n: k for first, last, k in SCHEDULE for n in range(first, last + 1)}
    assert {n for n, _ in found} == {1, 2, 3, 4, 5}
    assert all(k == by_load[n] for n, k in found)
    assert not stepper.scheduler.has_unfinished_requests()
    assert stepper.now == pytest.approx(0.01 * len(stepper.outputs))


def test_drafts_have_the_length_of_the_step_before(stepper):
    for number in range(3):
        stepper.scheduler.add_request(request(f"r{number}", 8, 100))
        stepper.run(4)
    stepper.run(8)
    last = stepper.steps[-1].scheduled_spec_decode_tokens
    assert {name: len(tokens) for name, tokens in last.items()} == {"r0": 1, "r1": 1, "r2": 1}
