"""What is asked of engines, by ones that answer without decoding."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import FAST, OURS, STOCK, MadeUpTune, load, settings_of
from vllm_eagle_ext.measure.bench.order import swept, variants
from vllm_eagle_ext.measure.bench.results import PLAIN, Variant
from vllm_eagle_ext.measure.bench.runner import Runner
from vllm_eagle_ext.measure.bench.take import figures_of_steps, figures_of_texts
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Answer, Measured, TimedSteps

pytestmark = pytest.mark.promise("`bench` measures no draft, stock vLLM and this package")
ANSWER = Answer(prompt_tokens=120, tokens=list(range(11)), steps=[1, 4, 4, 2], ttft_s=0.5, decode_s=2.0)


class FakeEngine:
    """Answers as the program of an engine's process does."""

    running: list[str] = []  # noqa: RUF012
    fails: dict[str, str] = {}  # noqa: RUF012 (by log: at "start" or "load")
    asked: list[tuple[str, object]] = []  # noqa: RUF012

    def __init__(self, arguments, log, *, name, plugin):
        self.arguments, self.log, self.plugin = arguments, log.stem, plugin

    def __enter__(self):
        if self.fails.get(self.log) == "start":
            raise EngineFailedError(field="e", value="it ended", allowed="no end", remedy="see")
        self.running.append(self.log)
        return self

    def __exit__(self, *_):
        self.running.remove(self.log)

    def rpc(self, method, *arguments):
        if method == "eagle_ext_facts":
            return [{"plugin": self.plugin, "drafter": "X"}]
        return [{"steps": 5, "target_s": 0.01, "draft_s": 0.001}]

    def load(self, asked):
        self.asked.append((self.log, asked))
        if self.fails.get(self.log) == "load":
            raise EngineFailedError(field="e", value="it ended", allowed="no end", remedy="see")
        return Measured(1.0, [ANSWER], 3, 9, [3, 2, 2])

    def steps(self, asked):
        self.asked.append((self.log, asked))
        return TimedSteps([0.01] * asked.steps, asked.steps * len(asked.prompts), 100)


class Silent:
    """A display that shows nothing."""

    def __getattr__(self, name):
        return lambda *_: None


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Makes one that starts no process."""
    for name, value in (("running", []), ("fails", {}), ("asked", [])):
        monkeypatch.setattr(FakeEngine, name, value)
    monkeypatch.setattr(Runner, "PROCESS", FakeEngine)
    monkeypatch.setattr(
        "vllm_eagle_ext.measure.bench.runner.with_memory", lambda engine, *_, **__: (dict(engine), None)
    )

    def made(settings):
        prompts = {one: [[n] * 4 for n in range(16)] for one in settings.contexts}
        return Runner(settings, prompts, tmp_path / "logs", Silent())

    return made


@pytest.mark.parametrize("together", [False, True])
def test_every_variant_at_every_load_in_every_round(runner, together):
    settings = settings_of(concurrency=[1, 4], rounds=2, repeats=2, max_tokens=32, together=together)
    found = runner(settings)
    found.run("texts", variants(settings))
    cells = {(one.variant, one.load, one.repeat) for one in found.measurements}
    assert len(found.measurements) == len(cells) == 3 * 2 * 4
    assert {one.repeat for one in found.measurements} == {0, 1, 2, 3}
    assert FakeEngine.running == []
    assert len(found.engines) == 6
    # The parts of a step are taken of the first engine of each kind alone.
    assert [bool(one.splits) for one in found.engines] == [True] * 3 + [False] * 3
    assert not any(one.error or one.probe_error for one in found.engines)


def test_rounds_of_engines_beside_each_other_take_turns(runner):
    settings = settings_of(rounds=2, max_tokens=32, together=True)
    found = runner(settings)
    found.run("texts", variants(settings))
    order = [(one.variant.kind, one.repeat) for one in found.measurements]
    assert order == [
        ("none", 0), ("stock", 0), ("ours", 0), ("ours", 1), ("stock", 1), ("none", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["start", "load"])
def test_a_variant_that_failed_is_not_tried_again(runner, where):
    settings = settings_of(repeats=2, max_tokens=32)
    FakeEngine.fails["stock_draft1_k3_1"] = where
    found = runner(settings)
    found.run("texts", variants(settings))
    assert {one.variant for one in found.measurements} == {PLAIN, OURS}
    assert list(found.failures) == [STOCK]
    errors = [one.error for one in found.engines if one.variant == STOCK]
    assert errors == ["it ended\nsee"] * 2
    assert "stock_draft1_k3_2" not in {log for log, _ in FakeEngine.asked}


def test_an_engine_without_this_package_is_no_engine_of_ours(runner, monkeypatch):
    monkeypatch.setattr(FakeEngine, "rpc", lambda *_: [{"plugin": False}])
    settings = settings_of(kinds=["ours"], max_tokens=32)
    found = runner(settings)
    found.run("texts", variants(settings))
    assert found.measurements == []
    assert "this package was loaded: False" in found.engines[0].error
    assert "status" in found.engines[0].error


def test_the_first_load_warms_the_engine_up(runner):
    settings = settings_of(kinds=["none"], concurrency=[4], rounds=2, max_tokens=32)
    runner(settings).run("texts", variants(settings))
    lengths = [(len(one.prompts), one.max_tokens) for _, one in FakeEngine.asked]
    assert lengths == [(4, 16), (16, 32), (16, 32), (8, 64)]  # the last for the parts of a step


def test_one_engine_holds_every_k(runner):
    made = MadeUpTune(rounds=1, concurrency=(1,), contexts=(64,))
    settings = made.settings()
    found = runner(settings)
    found.run("sweep", swept(settings))
    assert {log for log, _ in FakeEngine.asked} == {"sweep_none_1", "sweep_held_draft1_k4_1"}
    held = {one.draft_length for log, one in FakeEngine.asked if "held" in log}
    assert held == set(settings.ks)
    assert {one.draft_length for log, one in FakeEngine.asked if "none" in log} == {None}
    assert [one.variant for one in found.measurements] == swept(settings)
    assert {one.load for one in found.measurements} == {load(1, 64)}


def test_no_k_is_asked_of_what_is_served(runner):
    settings = MadeUpTune(rounds=1, concurrency=(1,), contexts=(64,)).settings()
    runner(settings).run("closing", [PLAIN, Variant(kind="ours", draft=FAST, k=2)])
    assert {one.draft_length for _, one in FakeEngine.asked} == {None}


def test_figures_of_texts():
    found = figures_of_texts(Measured(1.0, [ANSWER], 3, 9, [3, 2, 2]))
    assert found["tokens_per_s"] == 11
    assert found["tpot_s"] == [pytest.approx(0.2)]
    assert found["step_s"] == pytest.approx(2.0 / 3)  # the prompt's step is none of decoding


@pytest.mark.parametrize(
    ("answers", "step_s"),
    [
        # 100 steps each of 10 ms, one text of one token a step and one of four.
        ([([1] * 101, 1.0), ([1] + [4] * 100, 1.0)], 0.01),
        # Without a draft: 10 steps of 28 ms, which more prompts ran beside, and 90 of 8 ms.
        ([([1] * 11, 0.28), ([1] * 91, 0.72)], 0.01),
        # Four steps of 4 tokens each, of which the text takes 13.
        ([([1, 4, 4, 4, 1], 0.04)], 0.01),
        ([([1], 0.0)], None),
    ],
    ids=["unequal acceptance", "unequal length", "a last step that was cut", "no step"],
)
def test_a_step_is_a_step_of_the_target(answers, step_s):
    """Where mean TPOT x acceptance length is something else."""
    found = figures_of_texts(
        Measured(1.0, [Answer(8, [7] * sum(steps), steps, 0.1, s) for steps, s in answers])
    )
    assert found["step_s"] == (step_s if step_s is None else pytest.approx(step_s))


def test_figures_of_steps():
    """A straggler moves nothing; waves behind each other are one load."""
    waves = [
        TimedSteps([0.01, 0.01, 0.5], 12, 100, drafts=8, accepted=[6, 4]),
        TimedSteps([0.01, 0.01, 0.01], 6, 100, drafts=4, accepted=[2]),
    ]
    found = figures_of_steps(waves)
    assert found["step_s"] == 0.01
    assert found["tokens_per_s"] == pytest.approx(18 / 6 / 0.01)
    assert (found["drafts"], found["accepted"]) == (12, [8, 4])
