"""A draft that sleeps with prefix caching on, against the cache of one that is kept awake.

Texts begin alike, so that requests find each other's blocks, those of requests that have ended among
them; blocks that nobody holds are given to others in turn. One KV-cache group, as vLLM makes it of
layers of one kind. Whenever tokens are drafted, every row that a request reads is the one that a draft
kept awake would have written, and nothing else.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput

from vllm_eagle_ext.drafters import deferred_context, sleeping_draft
from vllm_eagle_ext.drafters.deferred_context import ContextRows, DeferredContext
from vllm_eagle_ext.drafters.row_owners import HeldBlocks, Standing
from vllm_eagle_ext.drafters.sleeping_draft import SleepingDraft

BLOCK, BLOCKS, REQUESTS, ROWS, STEPS, TEXTS = 4, 40, 5, 24, 1500, 3
Entry = tuple[int, int]  # text, position


class Draft(SleepingDraft):
    """Writes a row's text and position, which are its states, into a table of places."""

    def __init__(self) -> None:
        self.cache: dict[int, Entry] = {}
        self.passes = 0
        self.deferred = DeferredContext(ROWS, 2, torch.float32, torch.device("cpu"))

    def fill_cache(self, rows: ContextRows) -> None:
        """In any order: rows of one pass are written at once."""
        self.passes += 1
        written = list(zip(rows.places.tolist(), rows.states.long().tolist(), strict=True))
        random.Random(self.passes).shuffle(written)
        for place, (text, position) in written:
            if place >= 0:
                self.cache[place] = (text, position)


class Request:
    def __init__(self, text: int, prompt: int) -> None:
        self.text, self.prompt, self.computed = text, prompt, 0
        self.blocks: list[int] = []
        self.block_ids = [self.blocks]  # as the runner keeps them

    @property
    def num_computed_tokens(self) -> int:
        return self.computed


class Machine:
    """What a scheduler with prefix caching does with blocks; texts are read to any position."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.requests: dict[str, Request] = {}
        self.holders = [0] * BLOCKS
        self.free = list(range(BLOCKS))  # the one that was given back first is taken first
        self.found: dict[Entry, int] = {}  # text and number of a full block -> where it lies
        self.draft, self.awake = Draft(), Draft()
        self.asleep = self.hits = self.count = self.groups = 0

    def step(self, k: int) -> None:
        self._end_some()
        self._admit()
        rows = {name: self._rows_of(request) for name, request in self.requests.items()}
        rows = {name: many for name, many in rows.items() if many and self.draw.random() > 0.1}
        if not rows:
            return
        for name, many in rows.items():
            self._register(self.requests[name], many)
        step, metadata, states, runner = self._as_vllm_hands_over(rows, k)
        drafts = self.draft.sleep_through(runner, step, states[1].long(), states, metadata)
        self.asleep += drafts is not None
        for name, many in rows.items():
            request = self.requests[name]
            for position in range(request.computed, request.computed + many):
                row = (request.text, position)
                self.awake.cache[self.place(request, position)] = row
                if drafts is None:
                    self.draft.cache[self.place(request, position)] = row
        if k:
            self._nothing_is_missing(rows)
        for name, many in rows.items():
            self.requests[name].computed += many

    @staticmethod
    def place(request: Request, position: int) -> int:
        return request.blocks[position // BLOCK] * BLOCK + position % BLOCK

    def _end_some(self) -> None:
        """Finished or preempted: either way the blocks are given back, the last one first."""
        for name in list(self.requests):
            if self.draw.random() < 0.06:
                for block in reversed(self.requests.pop(name).blocks):
                    self.holders[block] -= 1
                    if not self.holders[block]:
                        self.free.append(block)

    def _admit(self) -> None:
        if len(self.requests) == REQUESTS or self.draw.random() > 0.3:
            return
        self.count += 1
        request = Request(self.draw.randrange(TEXTS), self.draw.randint(1, 14))
        for number in range((request.prompt - 1) // BLOCK):
            block = self.found.get((request.text, number))
            if block is None:
                break
            if not self.holders[block]:
                self.free.remove(block)
            self.holders[block] += 1
            request.blocks.append(block)
        request.computed = BLOCK * len(request.blocks)
        self.hits += request.computed
        self.requests[str(self.count)] = request

    def _rows_of(self, request: Request) -> int:
        """What is left of the prompt, or one; 0 where no block is free."""
        many = max(1, request.prompt - request.computed)
        while BLOCK * len(request.blocks) < request.computed + many:
            if not self.free:
                return 0
            block = self.free.pop(0)
            self.found = {entry: lies for entry, lies in self.found.items() if lies != block}
            self.holders[block] += 1
            request.blocks.append(block)
        return many

    def _register(self, request: Request, many: int) -> None:
        """Full blocks can be found from the step on that computes them."""
        for number in range((request.computed + many) // BLOCK):
            self.found.setdefault((request.text, number), request.blocks[number])

    def _as_vllm_hands_over(self, rows: dict[str, int], k: int) -> tuple[Any, Any, Any, Any]:
        step = SchedulerOutput.make_empty()
        step.num_scheduled_tokens, step.num_spec_tokens_to_schedule = rows, k
        step.total_num_scheduled_tokens = sum(rows.values())
        each = [(self.requests[name], i) for name, many in rows.items() for i in range(many)]
        positions = torch.tensor([request.computed + i for request, i in each])
        texts = torch.tensor([request.text for request, _ in each])
        places = torch.tensor([self.place(request, request.computed + i) for request, i in each])
        runner = SimpleNamespace(
            requests=self.requests,
            input_batch=SimpleNamespace(req_ids=list(rows)),
            discard_request_mask=SimpleNamespace(np=np.zeros(len(rows), dtype=bool)),
            cache_config=SimpleNamespace(enable_prefix_caching=True),
            kv_cache_config=SimpleNamespace(kv_cache_groups=[None] * (1 + self.groups)),
            _get_positions=lambda count: positions[:count],
        )
        states = [column.float()[:, None] for column in (texts, positions)]
        return step, SimpleNamespace(slot_mapping=places), states, runner

    def _nothing_is_missing(self, rows: dict[str, int]) -> None:
        for name in rows:
            request = self.requests[name]
            for position in range(request.computed):
                place = self.place(request, position)
                assert self.awake.cache[place] == (request.text, position)  # or the model is wrong
                assert self.draft.cache.get(place) == (request.text, position), (
                    "a hole, or another's row"
                )


def run(seed: int) -> Machine:
    machine = Machine(seed)
    for _ in range(STEPS):
        machine.step(machine.draw.choice([0] * 5 + [2]))
    return machine


@pytest.mark.parametrize("seed", range(4))
def test_the_cache_is_that_of_a_draft_that_was_kept_awake(seed):
    machine = run(seed)
    assert machine.hits > 500
    assert machine.asleep > 200
    assert 20 < machine.draft.passes < machine.asleep


def before_drafts_alone(self, runner, step, names):
    return step.num_spec_tokens_to_schedule > 0


def as_without_prefix_caching(self, runner, names):
    self.deferred.flush(HeldBlocks(runner.requests, names, None).stand, self.fill_cache)


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (SleepingDraft, "_has_to_be_filled", before_drafts_alone),
        (SleepingDraft, "_fill_afterwards", as_without_prefix_caching),
        (deferred_context, "_last_ones", lambda places: places),
        (sleeping_draft, "written", lambda _: Standing.LOST),
    ],
    ids=["prompts write first", "ended requests are left out", "any row of a place", "nothing"],
)
def test_each_of_the_rules_is_needed(monkeypatch, place, name, broken):
    """Negative control."""
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(AssertionError, match="a hole, or another's row"):
        list(map(run, range(4)))


def test_layers_that_take_turns_in_one_memory_keep_a_draft_awake(vllm_log):
    """The preflight knows such pairs by their configs, and this is for those that it does not know."""
    machine = Machine(0)
    machine.groups = 1
    for _ in range(50):
        machine.step(0)
    assert machine.asleep == 0
    assert machine.draft.deferred is None
    assert len(vllm_log.containing("in one memory with layers of another kind")) == 1
