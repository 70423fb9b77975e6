"""Which engines run at the same time, in which order, and what is said before."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.made_up import FAST, SLOW, MadeUpTune, load, settings_of
from vllm_eagle_ext.measure.bench.results import PLAIN, SCHEDULE_KEY, Variant
from vllm_eagle_ext.measure.bench.runner import (
    batches,
    engine_arguments,
    prompts_of,
    swept,
    turns,
    variants,
)

pytestmark = pytest.mark.promise("`bench` measures no draft, stock vLLM and this package")
TWO = {"drafts": [FAST, SLOW], "ks": [3, 5], "repeats": 2, "max_tokens": 64}


def test_stock_and_ours_are_neighbours():
    names = [(v.kind, v.draft, v.k) for v in variants(settings_of(**TWO))]
    pairs = [(draft, k) for draft in (FAST, SLOW) for k in (3, 5)]
    drafted = [(kind, draft, k) for draft, k in pairs for kind in ("stock", "ours")]
    assert names == [("none", None, 0), *drafted]


def test_every_second_repeat_runs_backwards():
    settings = settings_of(**TWO)
    engines = [engines for _, engines in batches(settings, variants(settings))]
    assert [len(at_once) for at_once in engines] == [1] * 18
    assert engines[9:] == engines[:9][::-1]


def test_every_k_is_held_in_one_engine_beside_no_draft():
    """What is compared takes turns in changing order."""
    settings = MadeUpTune().settings()
    ((_, engines),) = batches(settings, swept(settings))
    held = [Variant(kind="held", draft=FAST, k=k) for k in settings.ks]
    assert engines == [[PLAIN], held]
    apart = settings.model_copy(update={"together": False})
    assert [at_once for _, at_once in batches(apart, swept(apart))] == [[[PLAIN]], [held]]
    first, second = ([v for _, v in turns(engines, number)] for number in (0, 1))
    assert first == swept(settings) == second[::-1]


def test_a_held_k_and_one_that_is_served():
    settings = MadeUpTune().settings()
    held = engine_arguments(settings, Variant(kind="held", draft=FAST, k=2))
    assert held["speculative_config"]["num_speculative_tokens"] == 4
    assert {k for _, _, k in held["speculative_config"][SCHEDULE_KEY]} == set(settings.ks)
    assert held["scheduler_cls"].endswith("probe.build_holding_scheduler")
    fixed = engine_arguments(settings, Variant(kind="ours", draft=FAST, k=2))
    assert fixed["speculative_config"]["num_speculative_tokens"] == 2
    assert "scheduler_cls" not in fixed


def test_prompts_change_from_round_to_round_and_not_from_length_to_length():
    prompts = [[number] for number in range(40)]
    first, second = (prompts_of(load(1, 64), number, prompts) for number in (0, 1))
    assert first == [[[0]], [[1]], [[2]], [[3]]]  # behind each other, as more than one text is better
    assert second == [[[4]], [[5]], [[6]], [[7]]]
    (wave,) = prompts_of(load(32, 64), 1, prompts)
    assert len({tuple(prompt) for prompt in wave}) == 32


def test_only_ours_is_given_our_options():
    """Beside what other plugins are given in each."""
    others = {"other_plugin": {"x": 1}}
    settings = settings_of(
        eagle_ext={"strict": False}, engine={"max_model_len": 64, "additional_config": others}
    )
    ours, stock = (
        engine_arguments(settings, Variant(kind=kind, draft=FAST, k=3)) for kind in ("ours", "stock")
    )
    assert ours.pop("additional_config") == {**others, "eagle_ext": {"strict": False}}
    assert stock.pop("additional_config") == others
    assert ours == stock
    assert stock["speculative_config"] == {
        "method": "eagle3", "model": FAST, "num_speculative_tokens": 3
    }  # fmt: skip
    plain = engine_arguments(settings, PLAIN)
    assert plain.keys() == {"seed", "max_model_len", "model", "additional_config"}


def test_dummy_weights_are_the_targets_alone():
    settings = settings_of(dummy=True, synthetic_acceptance=[0.9, 0.7, 0.5])
    ours = engine_arguments(settings, Variant(kind="ours", draft=FAST, k=2))
    assert ours["load_format"] == "dummy"
    speculative = ours["speculative_config"]
    assert speculative["draft_load_config"] == {"load_format": "auto"}
    assert speculative["synthetic_acceptance_rates"] == [0.9, 0.7]


def test_a_small_k_takes_what_it_can_of_an_acceptance_length():
    settings = settings_of(synthetic_acceptance=[4.5])
    lengths = [
        engine_arguments(settings, Variant(kind="ours", draft=FAST, k=k))["speculative_config"]
        for k in (3, 5)
    ]
    assert [config["synthetic_acceptance_length"] for config in lengths] == [4, 4.5]
