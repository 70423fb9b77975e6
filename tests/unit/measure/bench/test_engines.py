"""Which engines run at the same time, in which order, and how long it is said to take."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import FAST, SLOW, MadeUp, MadeUpTune, load, settings_of
from vllm_eagle_ext.engine_rules.weights import BF16_FALLBACK
from vllm_eagle_ext.measure.bench import progress
from vllm_eagle_ext.measure.bench.engines import (
    COMPILED_S,
    EAGER_S,
    batches,
    batches_s,
    engine_arguments,
    prompts_of,
    swept,
    turns,
    variants,
)
from vllm_eagle_ext.measure.bench.progress import announced, duration
from vllm_eagle_ext.measure.bench.request import BenchRequest
from vllm_eagle_ext.measure.bench.results import PLAIN, Variant

pytestmark = pytest.mark.promise("`bench` measures no draft, stock vLLM and this package")
TWO = {"drafts": [FAST, SLOW], "ks": [3, 5], "repeats": 2, "max_tokens": 64}


def test_stock_and_ours_are_neighbours():
    names = [(one.kind, one.draft, one.k) for one in variants(settings_of(**TWO))]
    pairs = [(draft, k) for draft in (FAST, SLOW) for k in (3, 5)]
    drafted = [(kind, draft, k) for draft, k in pairs for kind in ("stock", "ours")]
    assert names == [("none", None, 0), *drafted]


def test_every_second_repeat_runs_backwards():
    settings = settings_of(**TWO)
    found = [one.engines for one in batches(settings, variants(settings))]
    half = len(found) // 2
    assert found[half:] == found[:half][::-1]


def test_engines_of_a_repeat_run_at_the_same_time_if_asked_to():
    settings = settings_of(**TWO)
    found = batches(settings, variants(settings))
    assert [len(one.engines) for one in found] == [1] * 18
    together = settings.model_copy(update={"together": True})
    found = batches(together, variants(together))
    assert [(one.repeat, len(one.engines)) for one in found] == [(0, 9), (1, 9)]


def test_every_k_is_held_in_one_engine_beside_no_draft():
    settings = MadeUpTune().settings()
    (found,) = batches(settings, swept(settings))
    held = tuple(Variant(kind="held", draft=FAST, k=k) for k in settings.ks)
    assert found.engines == ((PLAIN,), held)
    apart = settings.model_copy(update={"together": False})
    assert [one.engines for one in batches(apart, swept(apart))] == [((PLAIN,),), (held,)]


def test_what_is_compared_takes_turns_in_changing_order():
    settings = MadeUpTune().settings()
    (found,) = batches(settings, swept(settings))
    first, second = ([one for _, one in turns(found, number)] for number in (0, 1))
    assert first == swept(settings)
    assert second == first[::-1]


def test_prompts_change_from_round_to_round_and_not_from_length_to_length():
    prompts = [[number] for number in range(40)]
    first, second = (prompts_of(load(1, 64), number, prompts) for number in (0, 1))
    assert first == [[[0]], [[1]], [[2]], [[3]]]  # behind each other, as more than one text is better
    assert second == [[[4]], [[5]], [[6]], [[7]]]
    (wave,) = prompts_of(load(32, 64), 1, prompts)
    assert len({tuple(prompt) for prompt in wave}) == 32


def seconds(settings):
    return batches_s(settings, batches(settings, variants(settings)))


def test_starts_tokens_and_rounds_count():
    settings = MadeUp(repeats=1).settings()
    texts_s = seconds(settings) - 3 * COMPILED_S
    eager = settings.model_copy(update={"engine": {"enforce_eager": True}})
    assert seconds(eager) == pytest.approx(3 * EAGER_S + texts_s)
    rounds = settings.model_copy(update={"rounds": 3})
    assert seconds(rounds) == pytest.approx(3 * COMPILED_S + 3 * texts_s)
    four = settings.model_copy(update={"concurrency": [4]})
    assert 3 * COMPILED_S < seconds(four) < seconds(settings)


def test_the_default_takes_less_than_ten_minutes():
    asked = BenchRequest(target="t", drafts=["d"])
    settings = settings_of(
        repeats=asked.repeats, rounds=asked.rounds, max_tokens=asked.max_tokens, num_prompts=20
    )
    assert seconds(settings) < 600


@pytest.mark.parametrize(
    ("given", "text"),
    [(3, "10 seconds"), (84, "80 seconds"), (400, "7 minutes"), (9000, "2.5 hours")],
)
def test_said(given, text):
    assert duration(given) == text


@pytest.mark.parametrize(("found", "warned"), [(0.0, False), (1e6, True), (None, False)])
def test_what_is_said_before_the_first_engine(monkeypatch, found, warned):
    monkeypatch.setattr(progress, "load_average", lambda: found)
    lines = list(announced(MadeUp().settings(), 400))
    assert lines[0].startswith("A small model on a CPU takes about 7 minutes. ")
    assert any(line.startswith("Warning: load average 1000000.0 on ") for line in lines) == warned


@pytest.mark.parametrize(
    ("platform", "lacks", "said"), [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)]
)
def test_a_dtype_without_a_kernel_is_said_before_the_first_engine(monkeypatch, platform, lacks, said):
    monkeypatch.setattr(progress, "find_platform", lambda _: (platform, "as asked"))
    monkeypatch.setattr(progress, "lacks_avx512", lambda: lacks)
    for settings in (MadeUp().settings(), MadeUpTune().settings()):
        assert (f"Warning: {BF16_FALLBACK}." in announced(settings, 400)) is said
    assert not list(progress.fallback_warning({"dtype": "float32"}))


def test_only_ours_is_given_our_options():
    settings = settings_of(eagle_ext={"strict": False}, engine={"max_model_len": 64})
    ours, stock = (
        engine_arguments(settings, Variant(kind=kind, draft=FAST, k=3)) for kind in ("ours", "stock")
    )
    assert ours.pop("additional_config") == {"eagle_ext": {"strict": False}}
    assert ours == stock
    assert stock["speculative_config"] == {
        "method": "eagle3", "model": FAST, "num_speculative_tokens": 3
    }  # fmt: skip
    assert engine_arguments(settings, PLAIN).keys() == {"seed", "max_model_len", "model"}


def test_dummy_weights_are_the_targets_alone():
    settings = settings_of(dummy=True, synthetic_acceptance=[0.9, 0.7, 0.5])
    found = engine_arguments(settings, Variant(kind="ours", draft=FAST, k=2))
    assert found["load_format"] == "dummy"
    speculative = found["speculative_config"]
    assert speculative["draft_load_config"] == {"load_format": "auto"}
    assert speculative["synthetic_acceptance_rates"] == [0.9, 0.7]


def test_a_small_k_takes_what_it_can_of_an_acceptance_length():
    settings = settings_of(synthetic_acceptance=[4.5])
    lengths = [
        engine_arguments(settings, Variant(kind="ours", draft=FAST, k=k))["speculative_config"]
        for k in (3, 5)
    ]
    assert [one["synthetic_acceptance_length"] for one in lengths] == [4, 4.5]
