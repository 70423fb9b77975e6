"""What `python -m benchmarks.draft_lengths` asks of its engines, in which order, and how it is timed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from benchmarks.draft_lengths import phased_steps
from benchmarks.draft_lengths.length_watch import HoldingController, LengthWatch
from benchmarks.draft_lengths.lengths_result import AUTO, LoadShape
from benchmarks.draft_lengths.phased_load import PhasedLoad
from benchmarks.draft_lengths.tiny_pairs import SETTLING, load_of_turn, load_to_learn
from benchmarks.draft_lengths.turn_order import Turn, turns_of
from tests.unit.benchmarks.made_up_lengths import FULL, MANY, ONE, RAMP, SHORT, ZERO, settings
from vllm_eagle_ext.draft_length.controller import DraftLengthController
from vllm_eagle_ext.measure.tune.results import NONE

HELD = [ZERO, SHORT, FULL]
ALL = {Turn(NONE), Turn(AUTO), Turn(FULL, again=True), *map(Turn, HELD)}


class TestOrder:
    def turns(self):
        return [turns_of(HELD, FULL, number) for number in range(2 * (len(HELD) + 1))]

    def test_each_takes_every_turn(self):
        for turn in self.turns():
            assert len(turn) == len(ALL)
            assert set(turn) == ALL

    def test_auto_stands_between_no_draft_and_the_k_that_is_held_again(self):
        for turn in self.turns():
            place = turn.index(Turn(AUTO))
            assert {turn[place - 1], turn[place + 1]} == {Turn(NONE), Turn(FULL, again=True)}

    @pytest.mark.parametrize("one", sorted(ALL, key=str), ids=str)
    def test_none_is_always_at_an_end(self, one):
        """Nor nearer to one of them: in all turns together each is as early as it is late."""
        places = [turn.index(one) for turn in self.turns()]
        assert any(0 < place < len(ALL) - 1 for place in places)
        assert len(set(places)) > 2
        assert sum(places) / len(places) == (len(ALL) - 1) / 2

    def test_who_decodes_k_again(self):
        assert (Turn(FULL, again=True).engine, Turn(FULL, again=True).draft_length) == (AUTO, 4)
        assert (Turn(ZERO).engine, Turn(ZERO).draft_length) == (ZERO, 0)
        assert (Turn(AUTO).engine, Turn(AUTO).draft_length) == (AUTO, None)
        assert Turn(NONE).draft_length is None


class TestLoads:
    def test_phases_of_a_ramp(self):
        ramp = LoadShape(requests=32, context=64, ramp=True)
        assert ramp.phases == [1, 2, 4, 8, 16, 32, 16, 8, 4, 2, 1]
        ramp = LoadShape(requests=6, context=64, ramp=True)
        assert ramp.phases == [1, 2, 4, 6, 4, 2, 1]
        assert LoadShape(requests=1, context=64, ramp=True).phases == [1]

    @pytest.mark.parametrize("requests", [1, 4, 32])
    @pytest.mark.parametrize("sampled", [0.0, 0.5])
    def test_texts_of_two_turns(self, requests, sampled):
        """Every second one is sampled, at one request too, and the next turn has others."""
        load, prompts = LoadShape(requests=requests, context=64), [[n] for n in range(120)]
        turns = [load_of_turn(settings(sampled=sampled), load, n, prompts, 4) for n in range(2)]
        temperatures = [one for turn in turns for one in turn.temperatures]
        assert temperatures == [0.0, 2 * sampled] * requests
        for turn in turns:
            assert len(turn.prompts) == requests == max(turn.phases)
            assert (turn.draft_length, turn.settling) == (4, SETTLING)
        first, second = ({p[0] for p in turn.prompts} for turn in turns)
        assert not first & second

    def test_few_requests_decode_more_and_more_often(self):
        own = settings()
        busy = LoadShape(requests=32, context=64)
        assert [own.tokens_of(load) for load in (ONE, MANY, busy, RAMP)] == [10, 10, 5, 2]
        assert [own.rounds_of(load) for load in (ONE, MANY, busy, RAMP)] == [2, 1, 1, 1]

    def test_learning_ends_by_steps(self):
        """A ramp is decoded as a whole."""
        found = load_to_learn(settings(), MANY, 0, [[1]])
        assert (found.most_steps, found.tokens, found.draft_length) == (160, 128, None)
        assert load_to_learn(settings(), RAMP, 0, [[1]]).most_steps is None


class Scheduler:
    clock = staticmethod(time.perf_counter)

    def __init__(self, controller=None):
        if controller is not None:
            self.controller = controller

    def has_requests(self):
        return False


class Scripted(DraftLengthController):
    """Chooses these lengths, and says that those of steps 2 and 3 are a probe's."""

    def __init__(self):
        super().__init__([0, 1, 4])
        self.lengths, self.calls = iter([4, 0, 0, 4, 4]), 0

    @property
    def is_probing(self):
        return self.calls in (2, 3)

    def next_length(self, requests, context):
        self.calls += 1
        return next(self.lengths)


class TestWatch:
    def test_a_probe_lasts_until_its_last_draft_is_verified(self):
        scheduler = Scheduler(Scripted())
        with LengthWatch(scheduler, None, time.perf_counter) as watch:
            assert watch.chosen is None
            found = []
            for _ in range(5):
                assert scheduler.controller.next_length(1, context=80) in (0, 4)
                found.append(watch.chosen)
        assert found == [(4, False), (0, True), (0, True), (4, True), (4, False)]
        assert "next_length" not in vars(scheduler.controller)

    def test_one_k_is_held_and_nothing_is_learnt(self):
        own = DraftLengthController([0, 1, 4])
        scheduler = Scheduler(own)
        with LengthWatch(scheduler, 1, time.perf_counter) as watch:
            holding = scheduler.controller
            assert isinstance(holding, HoldingController)
            for _ in range(300):
                assert holding.next_length(1, 80) == 1
                holding.observe_drafts(1, [(1, 0)])
                holding.observe_step(1, 80, 1, 0.01)
            assert {figure.seconds for figure in holding.figures()} == {None}
            assert watch.chosen is None
        assert scheduler.controller is own

    def test_a_controller_of_its_own_would_move_on(self):
        """What is held is not what one chooses by itself under these times."""
        own = DraftLengthController([0, 1, 4])
        lengths = set()
        for _ in range(300):
            lengths.add(length := own.next_length(1, 80))
            own.observe_drafts(length, [(length, 0)] if length else [])
            own.observe_step(1, 80, length, 0.01 * (1 + length))
        assert len(lengths) > 1

    def test_other_schedulers_are_left_alone(self):
        scheduler = Scheduler()
        with LengthWatch(scheduler, 4, lambda: 0.0) as watch:
            assert not vars(scheduler)
            assert watch.chosen is None
        assert not vars(scheduler)


class Engine:
    """Each request gets a token of each step, by which time 1 ms has passed."""

    def __init__(self, scheduler):
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self.scheduler, self.names = scheduler, []
        self.gaps, self.gaps_of_all, self.ended = [], [], None

    def add_request(self, name, prompt, sampling):
        self.names.append(name)

    def abort_request(self, names):
        self.names = [name for name in self.names if name not in names]

    def has_unfinished_requests(self):
        return bool(self.names)

    def step(self):
        if self.ended is not None:
            self.gaps.append(self.scheduler.clock() - self.ended[0])
            self.gaps_of_all.append(time.perf_counter() - self.ended[1])
        until = time.process_time() + 0.001
        while time.process_time() < until:
            pass
        one = [SimpleNamespace(token_ids=[7])]
        outputs = [SimpleNamespace(request_id=n, finished=False, outputs=one) for n in self.names]
        self.ended = self.scheduler.clock(), time.perf_counter()
        return outputs


class SlowWork:
    """Reference work of 20 ms."""

    def __init__(self):
        self.cpu_s = self.wall_s = 0.0
        self.pieces, self.piece_s = 0, 0.02

    def run(self):
        time.sleep(0.02)
        self.cpu_s += 0.02
        self.wall_s += 0.02
        self.pieces += 1


class TestPhases:
    @pytest.fixture
    def phases(self, monkeypatch):
        monkeypatch.setattr(phased_steps, "endless_sampling", lambda *_, **__: None)
        monkeypatch.setattr(phased_steps, "ReferenceWork", SlowWork)

        def make(controller=None, **load):
            engine = Engine(Scheduler(controller))
            own = PhasedLoad([[1], [2]], [0.0, 1.0], [2], **({"tokens": 12} | load))
            return phased_steps.Phases(SimpleNamespace(llm_engine=engine), own, detokenize=False), engine

        return make

    def test_steps_count_once_the_requests_have_settled(self, phases):
        run, _ = phases(settling=3)
        found = run.run()
        assert (found.steps, found.of_prompt) == (12, [(12, 12), (12, 12)])
        assert found.decoded == 2 * (3 + 12)
        assert not found.by_length

    def test_the_most_steps(self, phases):
        run, _ = phases(most_steps=2)
        assert run.run().steps == 2
        assert run._work.pieces == 1  # of a short load, too, the machine's speed is known

    def test_reference_work_is_in_no_step_of_auto(self, phases):
        run, engine = phases(DraftLengthController([0, 4]))
        run.run()
        assert run._work.pieces == 12 // 4
        assert max(engine.gaps_of_all) > 0.02
        assert max(engine.gaps) < 0.02

    def test_steps_are_told_by_what_auto_chose(self, phases):
        controller = Scripted()
        controller.lengths = iter([4, 4, 0, 0, 0, 1])
        run, engine = phases(controller, tokens=4)
        step = engine.step

        def scheduled():
            engine.scheduler.controller.next_length(2, 80)
            return step()

        engine.step = scheduled
        found = run.run()
        # The first step gives first tokens and does not count.
        assert [one[:3] for one in found.by_length] == [(0, False, 1), (0, True, 2), (4, True, 1)]
        assert [one[5] for one in found.by_length] == [2, 4, 2]
        assert sum(one[3] for one in found.by_length) == pytest.approx(found.cpu_s)
