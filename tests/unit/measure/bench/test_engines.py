"""Which engines run at the same time, in which order, and what is said before."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import FAST, SLOW, MadeUp, MadeUpTune, load, settings_of
from vllm_eagle_ext.engine_rules.weights import BF16_FALLBACK
from vllm_eagle_ext.measure.bench import progress
from vllm_eagle_ext.measure.bench.engines import (
    batches,
    engine_arguments,
    prompts_of,
    swept,
    turns,
    variants,
)
from vllm_eagle_ext.measure.bench.progress import announced
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


@pytest.mark.parametrize(("found", "warned"), [(0.0, False), (1e6, True), (None, False)])
def test_what_is_said_before_the_first_engine(monkeypatch, found, warned):
    monkeypatch.setattr(progress, "load_average", lambda: found)
    lines = list(announced(MadeUp().settings()))
    assert "narrower intervals" in lines[0]
    assert any(line.startswith("Warning: load average 1000000.0 on ") for line in lines) == warned


@pytest.mark.parametrize(
    ("platform", "lacks", "said"), [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)]
)
def test_a_dtype_without_a_kernel_is_said_before_the_first_engine(monkeypatch, platform, lacks, said):
    monkeypatch.setattr(progress, "find_platform", lambda _: (platform, "as asked"))
    monkeypatch.setattr(progress, "lacks_avx512", lambda: lacks)
    for settings in (MadeUp().settings(), MadeUpTune().settings()):
        assert (f"Warning: {BF16_FALLBACK}." in announced(settings)) is said
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
