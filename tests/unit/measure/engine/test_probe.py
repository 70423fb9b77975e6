"""What is mixed into vLLM's worker, on runners that sleep instead of computing."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from vllm_eagle_ext.measure.engine.probe import StepClock, StepProbe, is_decoding

FORWARD_S, SAMPLE_S, DRAFT_S = 0.004, 0.002, 0.008


def scheduled(drafts, *, new=(), resumed=(), outputs=None, extra=0):
    """A step of these requests by their drafted tokens; 1 + of them are scheduled, and `extra`."""
    requests = [f"r{index}" for index in range(len(drafts))]
    tokens = {r: 1 + n + extra for r, n in zip(requests, drafts, strict=True)}
    cached = [r for r in requests if r not in new]
    return SimpleNamespace(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=cached, resumed_req_ids=set(resumed), num_output_tokens=outputs or [5] * len(cached)
        ),
        num_scheduled_tokens=tokens,
        scheduled_spec_decode_tokens={
            r: [-1] * n for r, n in zip(requests, drafts, strict=True) if n
        },
    )  # fmt: skip


@pytest.fixture(autouse=True)
def timed_by_sleep(monkeypatch):
    """A clock that sleeping alone moves."""
    now = [0.0]
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])


class Runner:
    """Takes the time that a step's parts take; V1 drafts within `sample_tokens`."""

    def __init__(self, k: int) -> None:
        self.k, self.asked = k, []

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        self.asked.append((scheduler_output, intermediate_tensors))
        time.sleep(FORWARD_S)

    def sample_tokens(self, grammar_output):
        time.sleep(SAMPLE_S)
        if self.k:
            self.propose()
        return "output"

    def propose(self):
        self.propose_draft_token_ids("scheduled", sampled_token_ids=[1])

    def propose_draft_token_ids(self, scheduler_output, sampled_token_ids):
        time.sleep(DRAFT_S)


class V2Runner(Runner):
    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.speculator = SimpleNamespace(propose=lambda *args: time.sleep(DRAFT_S)) if k else None

    def propose(self):
        self.speculator.propose("batch")


def step(runner, scheduler_output):
    assert runner.execute_model(scheduler_output, None) is None
    return runner.sample_tokens(None)


def clock(runner, drained=None):
    return StepClock(runner, runner.k, 2, lambda: drained.append(1) if drained is not None else None)


@pytest.mark.parametrize("kind", [Runner, V2Runner])
def test_a_step_is_split_into_target_and_draft(kind):
    runner, drained = kind(3), []
    timed = clock(runner, drained)
    for _ in range(5):
        assert step(runner, scheduled([3, 3])) == "output"
    timed.stop()
    found = timed.means()
    assert found["steps"] == 5
    assert found["target_s"] == pytest.approx(FORWARD_S + SAMPLE_S)
    assert found["draft_s"] == pytest.approx(DRAFT_S)
    assert len(drained) == 5 * 3 * 2  # before and after the forward, the sampling and the drafting
    assert len(runner.asked) == 5


@pytest.mark.parametrize("kind", [Runner, V2Runner])
def test_without_a_draft_all_is_the_targets(kind):
    runner = kind(0)
    timed = clock(runner)
    step(runner, scheduled([0, 0]))
    found = timed.means()
    assert found["steps"] == 1
    assert found["draft_s"] == 0
    assert found["target_s"] == pytest.approx(FORWARD_S + SAMPLE_S)


def test_other_steps_are_left_out():
    runner = Runner(3)
    timed = clock(runner)
    step(runner, scheduled([3, 0], new=["r1"]))  # a prompt beside a decoding request
    step(runner, scheduled([3, 2]))  # a request with fewer drafts
    runner.k = 0
    step(runner, scheduled([3, 3]))  # nothing was drafted after it
    assert timed.means() == StepClock.nothing()
    runner.k = 3
    step(runner, scheduled([3, 3]))
    assert timed.means()["steps"] == 1


@pytest.mark.parametrize("kind", [Runner, V2Runner])
def test_nothing_stays_behind(kind):
    runner = kind(3)
    owners = [owner for owner in (runner, getattr(runner, "speculator", None)) if owner]
    before = [dict(vars(owner)) for owner in owners]
    timed = clock(runner)
    assert [dict(vars(owner)) for owner in owners] != before
    timed.stop()
    assert [dict(vars(owner)) for owner in owners] == before
    step(runner, scheduled([3]))
    assert timed.means() == StepClock.nothing()


def test_an_attribute_that_was_there_comes_back():
    runner = Runner(0)
    runner.sample_tokens = own = lambda grammar: "own"
    timed = clock(runner)
    assert runner.sample_tokens(None) == "own"
    timed.stop()
    assert vars(runner)["sample_tokens"] is own


@pytest.mark.parametrize(
    ("output", "k"),
    [
        (scheduled([]), 3),
        (scheduled([3], new=["r0"]), 3),
        (scheduled([3], resumed=["r0"]), 3),
        (scheduled([3, 2]), 3),
        (scheduled([3, 3], extra=2), 3),
        (scheduled([0], outputs=[0]), 0),  # the last token of a prompt that came in chunks
        (scheduled([0], extra=4), 4),  # a chunk as long as a step with drafts
        (scheduled([0]), 4),
    ],
)
def test_what_is_no_decoding_step(output, k):
    assert not is_decoding(output, k, 2)


def test_what_is_a_decoding_step():
    assert is_decoding(scheduled([3, 3]), 3, 2)
    assert not is_decoding(scheduled([3, 3]), 3, 4)  # others have ended
    assert is_decoding(scheduled([0]), 0, 1)


def test_the_probe_is_switched_on_and_off():
    probe = StepProbe()
    probe.model_runner = Runner(3)
    probe.model_runner.device = SimpleNamespace(type="cpu")
    probe.vllm_config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=3))
    assert probe.eagle_ext_time_steps(0) == StepClock.nothing()
    assert probe.eagle_ext_time_steps(1)["steps"] == 0
    step(probe.model_runner, scheduled([3]))
    assert probe.eagle_ext_time_steps(1)["steps"] == 1  # begins anew
    assert probe.eagle_ext_time_steps(0)["steps"] == 0
    assert "execute_model" not in vars(probe.model_runner)


def test_every_name_is_prefixed():
    names = [name for name in dir(StepProbe) if not name.startswith("__")]
    assert names
    assert all(name.lstrip("_").startswith("eagle_ext_") for name in names)


def test_a_stock_worker_gets_nothing_of_the_plugin():
    """Nor does the import load vLLM or torch: they are there before it in a worker."""
    code = (
        "import sys, vllm_eagle_ext.measure.engine.probe\n"
        "heavy = {'vllm', 'torch', 'vllm_eagle_ext.plugin', 'vllm_eagle_ext.compat',"
        " 'vllm_eagle_ext.replay', 'vllm_eagle_ext.preflight'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
