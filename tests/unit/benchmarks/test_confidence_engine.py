"""The benchmark's scheduler, stepped as an engine core steps it: what it records, holds and cuts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks.calibration import Draft
from benchmarks.confidence_engine import PAIRS, SCHEDULER, Arm, hook
from tests.support.engine import TINY
from tests.support.stepping import Stepper, make_scheduler, request
from vllm_eagle_ext import plugin
from vllm_eagle_ext.measure.engine.held_length import schedule_of

K = 4
# Of request n the n-th row; cut at a running product of .05 they keep 4, 2, 0 and 1.
ROWS = [(0.9, 0.9, 0.9, 0.9), (0.5, 0.2, 0.1, 0.9), (0.04, 0.9, 0.9, 0.9), (0.3, 0.1, 0.9, 0.9)]
KEPT = [4, 2, 0, 1]


@pytest.fixture(scope="module")
def config():
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    pair = PAIRS["dense"]
    schedule = [list(entry) for entry in schedule_of(pair.lengths)]
    return EngineArgs(
        model=str(TINY / pair.target),
        speculative_config={**pair.speculative, "num_speculative_tokens_per_batch_size": schedule},
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=1024,
        enable_prefix_caching=False,
        async_scheduling=False,
        scheduler_cls=SCHEDULER,
    ).create_engine_config()


@pytest.fixture
def scheduler(config):
    made = make_scheduler(config)
    made.arm = Arm(K)
    return made


class Drafting(Stepper):
    """Notes the rows' figures as the hook does: of a block in one call, of a chain in one per token."""

    block = False

    def _hand_over(self, step, names):
        k = step.num_spec_tokens_to_schedule
        if names and k:
            rows = torch.tensor([ROWS[int(name)][:k] for name in names])  # [B, k]
            self.scheduler.noted += [rows.flatten()] if self.block else list(rows.unbind(1))
        super()._hand_over(step, names)


def run(scheduler, steps, *, block=False, accepts=lambda drafts: min(drafts, 2)):
    loop = Drafting(scheduler, lambda n, k: 0.01, accepts)
    loop.block = block
    for number in range(len(ROWS)):
        scheduler.add_request(request(str(number), 5, 200))
    loop.run(steps)
    return loop


def drafted(loop):
    """Per step, how many drafts of each request were verified."""
    return [
        [len(step.scheduled_spec_decode_tokens.get(str(n), ())) for n in range(len(ROWS))]
        for step in loop.steps
    ]


@pytest.mark.parametrize("block", [True, False], ids=["block", "chain"])
def test_every_verified_draft_is_recorded(scheduler, block):
    scheduler.records = True
    loop = run(scheduler, 6, block=block)
    assert drafted(loop)[1:] == [[K] * len(ROWS)] * 5
    expected = {Draft(tuple(torch.tensor(row).tolist()), 2) for row in ROWS}
    assert len(scheduler.recorded) == 5 * len(ROWS)
    assert set(scheduler.recorded) == expected


@pytest.mark.parametrize("block", [True, False], ids=["block", "chain"])
def test_a_cut_off_cuts_tails(scheduler, block):
    scheduler.records = True
    scheduler.arm = Arm(K, 0.05)
    loop = run(scheduler, 6, block=block)
    assert drafted(loop)[1:] == [KEPT] * 5
    assert all(len(draft.probabilities) == K for draft in scheduler.recorded)
    assert len(scheduler.recorded) == 5, "of those that were verified whole"


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_length_is_held(scheduler, length):
    scheduler.arm = Arm(length)
    loop = run(scheduler, 5, accepts=lambda drafts: min(drafts, 1))
    assert drafted(loop)[1:] == [[length] * len(ROWS)] * 4
    assert not scheduler.recorded


def test_arms_take_turns_in_one_engine(scheduler):
    loop = run(scheduler, 3)
    for arm, found in ((Arm(0), [0] * 4), (Arm(K, 0.05), KEPT), (Arm(K), [K] * 4)):
        scheduler.arm = arm
        loop.run(3)
        assert drafted(loop)[-2:] == [found] * 2
    assert [arm.name for arm in (Arm(0), Arm(K, 0.05))] == ["K=0", "cut-off"]


def test_the_hook_notes_the_largest_probability_where_it_is_read():
    logits = torch.tensor([[0.0, 0.0], [3.0, float("-inf")]])
    model = torch.nn.Module()
    model.compute_logits = lambda states: logits
    scheduler = SimpleNamespace(records=False, arm=Arm(K), noted=[])
    hook(model, scheduler)
    assert model.compute_logits(None) is logits
    assert scheduler.noted == []
    for scheduler.records, scheduler.arm in ((True, Arm(K)), (False, Arm(K, 0.05))):
        model.compute_logits(None)
    assert [one.tolist() for one in scheduler.noted] == [[0.5, 1.0]] * 2
