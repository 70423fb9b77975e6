"""A draft that sleeps over thousands of random steps, against the cache of one that is kept awake.

Requests join, wait, finish, are preempted and resumed, and go on by streaming input; a block that is
given back goes to another request, or to another KV-cache group. What is checked is the cache: whenever
tokens are drafted, every row that a draft kept awake would have written is there, and nobody else's
block was written into.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from vllm_eagle_ext.drafters.deferred_context import ContextRows, DeferredContext
from vllm_eagle_ext.drafters.row_owners import HeldBlocks, Standing
from vllm_eagle_ext.drafters.sleeping_draft import SleepingDraft

BLOCK, BLOCKS, REQUESTS, ROWS, STEPS = 4, 24, 5, 24, 1500
TARGET, DRAFT = 0, 1  # KV-cache groups, whose blocks come from one pool
WINDOW = 6
Entry = tuple[int, int, int]  # group, number of the request, position


class Draft(SleepingDraft):
    """Writes into a table; a row's states are the number of its request and its position, and the token
    behind it is the position, too."""

    def __init__(self, cache: dict[int, Entry]) -> None:
        self.cache, self.passes = cache, 0
        self.deferred = DeferredContext(ROWS, 2, torch.float32, torch.device("cpu"))

    def fill_cache(self, rows: ContextRows) -> None:
        self.passes += 1
        assert rows.states[:, 1].long().tolist() == rows.positions.tolist()
        assert rows.next_tokens.tolist() == rows.positions.tolist()
        owned = zip(rows.states.long().tolist(), rows.places.tolist(), strict=True)
        for (number, position), place in owned:
            if place >= 0:
                self.cache[place] = (DRAFT, number, position)


class Machine:
    """What a scheduler and vLLM's V1 runner do with requests and blocks, one step at a time."""

    def __init__(self, seed: int, window: int | None) -> None:
        self.draw, self.window = random.Random(seed), window
        self.free, self.cache = list(range(1, BLOCKS)), {}
        self.draft = Draft(self.cache)
        self.requests: dict[str, CachedRequestState] = {}
        self.numbers: dict[str, int] = {}
        self.waiting: set[str] = set()  # preempted
        self.released: dict[str, int] = {}  # blocks of the draft behind the window
        self.written: set[tuple[int, int]] = set()  # by a draft that is kept awake
        self.streamed: set[str] = set()  # with a chunk of input that is not computed yet
        self.preempted = self.continued = self.asleep = self.count = 0

    def step(self) -> None:
        self._end_some()
        rows = self._schedule()
        if not rows:
            return
        for name, many in rows.items():
            first = self.requests[name].num_computed_tokens
            for position in range(first, first + many):
                self.cache[self.place(name, TARGET, position)] = (
                    TARGET, self.numbers[name], position,
                )  # fmt: skip
        if self.draw.random() > 0.05:  # else the step does not fit in the drafter
            self._propose(rows, self.draw.choice([0, 0, 0, 0, 0, 2]))
        for name, many in rows.items():
            self.requests[name].num_computed_tokens += many
        self._nobody_elses_block_was_written()

    def place(self, name: str, group: int, position: int) -> int:
        block = self.requests[name].block_ids[group][position // BLOCK]
        return block * BLOCK + position % BLOCK

    def _end_some(self) -> None:
        for name in list(self.requests):
            if self.draw.random() < 0.04 and name not in self.waiting:
                self._give_back(name)
                del self.requests[name]
                self.streamed.discard(name)
            elif self.draw.random() < 0.04 and name not in self.waiting:
                self._give_back(name)
                self.waiting.add(name)
                self.streamed.discard(name)
                self.preempted += 1
            elif self.draw.random() < 0.04 and self.requests[name].num_computed_tokens:
                self._continue(name)

    def _continue(self, name: str) -> None:
        """A streaming update: the scheduler's lists, in which freed blocks are the null block."""
        if name not in self.waiting:
            gone, state = self.released.get(name, 0), self.requests[name]
            target, draft = state.block_ids
            state.block_ids = ([*target], [0] * gone + draft[gone:])
            self.streamed.add(name)
            self.continued += 1

    def _give_back(self, name: str) -> None:
        """The runner's own list stays as it is."""
        target, draft = self.requests[name].block_ids
        self.free += target + draft[self.released.pop(name, 0) :]
        self.draw.shuffle(self.free)

    def _schedule(self) -> dict[str, int]:
        if len(self.requests) < REQUESTS and self.draw.random() < 0.3:
            self._admit()
        rows: dict[str, int] = {}
        for name in list(self.requests):
            if self.draw.random() < 0.1:  # left out of this step
                continue
            many = 1
            if name in self.waiting:
                if self.draw.random() < 0.5:
                    continue
                many = max(1, self.requests[name].num_computed_tokens)
                self._resume(name)
            elif not self.requests[name].num_computed_tokens or name in self.streamed:
                many = self.draw.randint(1, 6)
            if self._grow(name, many):
                rows[name] = many
                self.streamed.discard(name)
        return rows

    def _admit(self) -> None:
        self.count += 1
        name = self.draw.choice("abcdefgh")  # names come again
        if name not in self.requests:
            self.requests[name], self.numbers[name] = self._state(name), self.count

    def _state(self, name: str) -> CachedRequestState:
        return CachedRequestState(
            req_id=name, prompt_token_ids=[1], mm_features=[], sampling_params=SamplingParams(),
            generator=None, block_ids=([], []), num_computed_tokens=0, output_token_ids=[],
        )  # fmt: skip

    def _resume(self, name: str) -> None:
        state = self.requests[name]
        state.block_ids, state.num_computed_tokens = ([], []), 0
        self.waiting.discard(name)
        self.count += 1
        self.numbers[name] = self.count  # its rows are computed anew

    def _grow(self, name: str, many: int) -> bool:
        state = self.requests[name]
        if self.window is not None:
            gone = max(0, state.num_computed_tokens - self.window + 1) // BLOCK
            before = self.released.get(name, 0)
            self.free += state.block_ids[DRAFT][before:gone]
            self.released[name] = max(before, gone)
        needed = -(-(state.num_computed_tokens + many) // BLOCK) - len(state.block_ids[TARGET])
        if 2 * needed > len(self.free):
            return False
        for _ in range(needed):
            for blocks in state.block_ids:
                blocks.append(self.free.pop(self.draw.randrange(len(self.free))))
        return True

    def _propose(self, rows: dict[str, int], k: int) -> None:
        step, metadata, states, runner = self._as_vllm_hands_over(rows, k)
        sampled = states[1].long() if self.draw.random() < 0.5 else states[1].long().tolist()
        drafts = self.draft.sleep_through(runner, step, sampled, states, metadata)
        self.asleep += drafts is not None
        for name, many in rows.items():
            first, number = self.requests[name].num_computed_tokens, self.numbers[name]
            for position in range(first, first + many):
                self.written.add((number, position))
                if drafts is None:
                    self.cache[self.place(name, DRAFT, position)] = (DRAFT, number, position)
        if drafts is not None:
            assert k == 0
            assert drafts.shape == (len(rows), 0)
        if k:
            self._nothing_is_missing(rows)

    def _as_vllm_hands_over(self, rows: dict[str, int], k: int) -> tuple[Any, Any, Any, Any]:
        step = SchedulerOutput.make_empty()
        step.num_scheduled_tokens, step.num_spec_tokens_to_schedule = rows, k
        step.total_num_scheduled_tokens = sum(rows.values())
        each = [
            (name, self.requests[name].num_computed_tokens + i)
            for name, n in rows.items()
            for i in range(n)
        ]
        places = torch.tensor([self.place(name, DRAFT, position) for name, position in each])
        columns = [[self.numbers[name] for name, _ in each], [position for _, position in each]]
        positions = torch.tensor(columns[1])
        shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
        spec: Any = FullAttentionSpec(**shape)
        if self.window is not None:
            spec = SlidingWindowSpec(**shape, sliding_window=self.window)
        runner = SimpleNamespace(
            requests=self.requests,
            input_batch=SimpleNamespace(req_ids=list(rows)),
            discard_request_mask=SimpleNamespace(np=np.array(self.inside(rows))),
            cache_config=SimpleNamespace(enable_prefix_caching=False),
            drafter=SimpleNamespace(
                draft_attn_groups=[SimpleNamespace(kv_cache_spec=spec)], kv_cache_gid=DRAFT
            ),
            _get_positions=lambda count: positions[:count],
        )
        states = [torch.tensor(column, dtype=torch.float32)[:, None] for column in columns]
        return step, SimpleNamespace(slot_mapping=places), states, runner

    def inside(self, rows: dict[str, int]) -> list[bool]:
        """Whether a request's prompt goes on behind the step's rows."""
        return [bool(self.draw.random() < 0.05) for _ in rows]

    def _nothing_is_missing(self, rows: dict[str, int]) -> None:
        for name in rows:
            number, computed = self.numbers[name], self.requests[name].num_computed_tokens
            first = 0 if self.window is None else max(0, computed - self.window + 1)
            for position in range(first, computed):
                if (number, position) in self.written:
                    entry = self.cache[self.place(name, DRAFT, position)]
                    assert entry == (DRAFT, number, position), "a hole in the draft's cache"

    def _nobody_elses_block_was_written(self) -> None:
        for name in self.requests.keys() - self.waiting:
            for position in range(self.requests[name].num_computed_tokens):
                entry = self.cache[self.place(name, TARGET, position)]
                assert entry == (TARGET, self.numbers[name], position), "another's block"


def run(seed: int, window: int | None) -> Machine:
    machine = Machine(seed, window)
    for _ in range(STEPS):
        machine.step()
    return machine


def run_all(window: int | None) -> None:
    for seed in range(4):
        run(seed, window)


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "windowed"])
@pytest.mark.parametrize("seed", range(4))
def test_the_cache_is_that_of_a_draft_that_was_kept_awake(seed, window):
    machine = run(seed, window)
    assert machine.preempted > 20
    assert machine.continued > 20
    assert machine.asleep > 200
    assert 20 < machine.draft.passes < machine.asleep


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "windowed"])
def test_without_the_pass_there_are_holes(monkeypatch, window):
    """Negative control."""
    monkeypatch.setattr(Draft, "fill_cache", lambda *_: None)
    with pytest.raises((AssertionError, KeyError)):
        run(0, window)


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "windowed"])
def test_with_lists_that_must_stay_streaming_input_leaves_holes(monkeypatch, window):
    """Negative control: a request's rows are lost once its lists are replaced."""
    monkeypatch.setattr(
        HeldBlocks, "_has_its_blocks", lambda _, owner: owner.state.block_ids is owner.blocks
    )
    with pytest.raises((AssertionError, KeyError)):
        run_all(window)


@pytest.mark.parametrize(
    ("broken", "window"),
    [
        ("all are held", None),
        ("any list is its own", None),
        ("waiting rows are written", None),
        ("no window", WINDOW),
    ],
)
def test_rows_that_lost_their_blocks_would_go_into_anothers(monkeypatch, broken, window):
    """Negative control: each of the reasons for which a row is not written."""
    held = HeldBlocks
    own, build = held.stand, held.__init__
    if broken == "all are held":
        monkeypatch.setattr(held, "stand", lambda *_: Standing.WRITTEN)
    elif broken == "any list is its own":
        monkeypatch.setattr(held, "_has_its_blocks", lambda *_: True)
    elif broken == "waiting rows are written":
        monkeypatch.setattr(held, "stand", lambda *given: _written_if_waiting(own(*given)))
    else:
        monkeypatch.setattr(held, "__init__", lambda self, *given: build(self, *given[:-1], None))
    with pytest.raises(AssertionError):
        run_all(window)


def _written_if_waiting(standing: Standing) -> Standing:
    return Standing.WRITTEN if standing is Standing.WAITING else standing
