"""vLLM's own schedulers, with and without async scheduling, take K from the controller."""

from __future__ import annotations

import random

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tests.support.draft_lengths import CYCLED, Watched, auto
from tests.support.engine import TINY
from tests.unit.draft_length.stepping import Stepper, make_scheduler, request
from vllm_eagle_ext import plugin
from vllm_eagle_ext.draft_length.scheduler import AsyncDraftLengthScheduler, DraftLengthScheduler

K = 4
MENU = (0, 1, 2, 4)


@pytest.fixture(scope="module")
def configured():
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    return EngineArgs(
        model=str(TINY / "target"),
        speculative_config={
            "method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": K,
        },
        additional_config={"eagle_ext": auto(MENU)},
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=1024,
        enable_prefix_caching=False,
    ).create_engine_config()  # fmt: skip


@pytest.fixture(params=["sync", "async"])
def config(request, configured):
    """Of an engine on the tiny pair; on a CPU vLLM itself never schedules ahead."""
    configured.scheduler_config.async_scheduling = request.param == "async"
    return configured


@pytest.fixture
def scheduler(config):
    return make_scheduler(config)


def accepts_two(drafts):
    return min(drafts, 2)


def stepper(scheduler, *, seconds=lambda n, k: 0.01 * (1 + 0.2 * k), accepts=accepts_two):
    return Stepper(scheduler, seconds, accepts)


def test_the_subclass_of_the_scheduler_that_vllm_would_take(config, scheduler):
    is_async = config.scheduler_config.async_scheduling
    assert type(scheduler) is (AsyncDraftLengthScheduler if is_async else DraftLengthScheduler)
    assert isinstance(scheduler, AsyncScheduler) is is_async
    assert scheduler.controller.menu == MENU


@pytest.mark.parametrize("taken", ["schedule", "speculative config"])
def test_vllms_own_without_a_schedule(config, monkeypatch, taken):
    """As where the name of this package's function outlives the option."""
    if taken == "schedule":
        monkeypatch.setattr(config.speculative_config, "num_speculative_tokens_per_batch_size", None)
    else:
        monkeypatch.setattr(config, "speculative_config", None)
    is_async = config.scheduler_config.async_scheduling
    assert type(make_scheduler(config)) is (AsyncScheduler if is_async else Scheduler)


def test_drafts_have_the_length_of_the_step_that_made_them(scheduler):
    """K rises and falls at random, while requests come, go on and end."""
    scheduler.controller = Watched(scheduler.controller, CYCLED)
    loop = stepper(scheduler)
    draw = random.Random(1)
    for number in range(6):
        scheduler.add_request(request(str(number), draw.randrange(1, 40), 60))
        loop.run(3)
    loop.run(30)
    made = {}  # request -> K of the step that drafted last for it
    verified = set()
    for step in loop.steps:
        for name, rows in step.num_scheduled_tokens.items():
            drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
            assert drafts in (0, made.get(name, 0)) or drafts < made[name]  # at the end of a text
            assert rows == 1 + drafts or name not in made
            verified.add(drafts)
            made[name] = step.num_spec_tokens_to_schedule
    told = [step.num_spec_tokens_to_schedule for step in loop.steps if step.num_scheduled_tokens]
    assert told == scheduler.controller.lengths
    assert set(told) == set(MENU)
    assert verified >= set(MENU)


def test_requests_get_the_tokens_that_were_sampled(scheduler):
    scheduler.controller = Watched(scheduler.controller, CYCLED)
    loop = stepper(scheduler)
    for number in range(5):
        scheduler.add_request(request(str(number), 10 + number, 50))
    loop.run(80)
    assert not scheduler.requests
    tokens = {}
    for outputs in loop.outputs:
        for output in outputs.get(0).outputs if outputs.get(0) else ():
            tokens[output.request_id] = tokens.get(output.request_id, 0) + len(output.new_token_ids)
    assert tokens == {str(number): 50 for number in range(5)}


def test_a_preempted_request_is_drafted_for_again(config):
    scheduler = make_scheduler(config, blocks=12)
    scheduler.controller = Watched(scheduler.controller, CYCLED)
    loop = stepper(scheduler)
    for number in range(4):
        scheduler.add_request(request(str(number), 30, 60))
    loop.run(200)
    assert not scheduler.requests
    assert any(step.preempted_req_ids for step in loop.steps) or any(
        step.scheduled_cached_reqs.resumed_req_ids for step in loop.steps
    )


@pytest.mark.parametrize(
    ("slope", "accepted", "best"), [(0.02, 4, 4), (0.5, 0, 0), (0.3, 1, 1)],
    ids=["cheap and right", "expensive and wrong", "the first token alone"],
)  # fmt: skip
def test_it_settles_on_the_best_length(scheduler, slope, accepted, best):
    loop = stepper(
        scheduler,
        seconds=lambda n, k: 0.01 * (1 + slope * k),
        accepts=lambda drafts: min(drafts, accepted),
    )
    for number in range(4):
        scheduler.add_request(request(str(number), 10, 900))
    loop.run(180)
    assert scheduler.controller.in_force == best
    lengths = [step.num_spec_tokens_to_schedule for step in loop.steps[-60:]]
    assert lengths.count(best) >= 45


def test_what_is_timed_are_steps_of_one_length(scheduler, monkeypatch):
    """The first step after a change of K is not; of steps with prompts it is said how many tokens."""
    timed = []
    controller = scheduler.controller
    monkeypatch.setattr(controller, "observe_step", lambda *step: timed.append(step))
    seconds = {k: 0.01 * (1 + k) for k in MENU}
    lengths = iter([4] * 5 + [1] * 4 + [0] * 4 + [4] * 40)
    monkeypatch.setattr(controller, "next_length", lambda n, context: next(lengths))
    loop = stepper(scheduler, seconds=lambda n, k: seconds[k])
    scheduler.add_request(request("0", 10, 500))
    loop.run(13)
    assert [k for _, _, k, _, _ in timed][:9] == [4, 4, 4, 4, 1, 1, 1, 0, 0]
    assert all(t == pytest.approx(seconds[k]) for _, _, k, t, _ in timed)
    assert not any(prompt for *_, prompt in timed), "the first step, which has a prompt, follows none"
    del timed[:]
    scheduler.add_request(request("1", 200, 500))  # in chunks
    loop.run(10)
    chunks = [prompt for *_, prompt in timed if prompt]
    assert len(chunks) > 1
    assert max(chunks) < sum(chunks) < 200
    assert timed[-1][0] == 2


def test_a_prompt_counts_as_context_in_the_step_that_reads_it(scheduler, monkeypatch):
    """Or its step would be timed, and decided on, among those of no context."""
    contexts = []
    monkeypatch.setattr(
        scheduler.controller, "next_length", lambda n, context: contexts.append(context) or K
    )
    scheduler.add_request(request("0", 100, 50))  # in two chunks, of 64 and 36
    stepper(scheduler).run(3)
    assert contexts[:2] == [64, 100]
    assert 100 < contexts[2] <= 101 + K


def test_time_without_requests_is_no_steps_time(scheduler, monkeypatch):
    timed = []
    monkeypatch.setattr(scheduler.controller, "observe_step", lambda *step: timed.append(step))
    loop = stepper(scheduler, seconds=lambda n, k: 0.01)
    for number in range(3):
        scheduler.add_request(request(str(number), 10, 20))
        while scheduler.has_unfinished_requests():  # an engine core makes no step without
            loop.run(1)
        loop.now += 1000.0
    assert timed
    assert all(step[3] == pytest.approx(0.01) for step in timed)


def test_the_switch_is_logged_with_its_figures(scheduler, vllm_log):
    loop = stepper(scheduler, seconds=lambda n, k: 0.01 * (1 + 0.5 * k), accepts=lambda drafts: 0)
    scheduler.add_request(request("0", 10, 900))
    loop.run(240)
    assert scheduler.controller.in_force == 0
    (line,) = vllm_log.containing("Drafting is")
    assert "off for 1 to 1 requests with 64 to 255 tokens of context" in line.getMessage()
    assert "K=0: 10 ms, 1.00 tokens per request" in line.getMessage()
