"""Which engines a bench starts, in which order, and what it keeps of an answer."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.request import engine_arguments
from vllm_eagle_ext.measure.bench.results import EngineRecord, Folder, Settings, Variant
from vllm_eagle_ext.measure.bench.schedule import batches, order, outstanding, variants
from vllm_eagle_ext.measure.bench.take import by_context, measurement
from vllm_eagle_ext.measure.engine.load import Answer, Measured

pytestmark = pytest.mark.promise("`bench` measures no draft, stock vLLM and this package")

SETTINGS = Settings(
    target="t", drafts=["a", "b"], method={"a": "eagle3", "b": "dflash"}, ks=[3, 5],
    concurrency=[1, 4], repeats=2, max_tokens=64, temperature=0, seed=0, ignore_eos=False,
    prompts="built-in", num_prompts=8, prompts_sha256="", prompt_tokens=[5] * 8, chat_template=True,
    thinking=None, engine={"max_model_len": 64}, speculative={}, eagle_ext={"strict": False},
    synthetic_acceptance=None, dummy=False, kinds=["none", "stock", "ours"],
)  # fmt: skip
NONE = Variant(kind="none")
ANSWER = Answer(prompt_tokens=120, tokens=list(range(11)), steps=[1, 4, 4, 2], ttft_s=0.5, decode_s=2.0)


def measured(variant: Variant, repeat: int, concurrency: int):
    return measurement(variant, repeat, concurrency, Measured(1.0, [ANSWER], 3, 9, [3, 2, 2]))


def test_stock_and_ours_are_neighbours():
    names = [variant.name for variant in variants(SETTINGS)]
    assert names == [
        "none",
        "stock a K=3", "ours a K=3", "stock a K=5", "ours a K=5",
        "stock b K=3", "ours b K=3", "stock b K=5", "ours b K=5",
    ]  # fmt: skip


def test_every_second_repeat_runs_backwards():
    found = list(order(SETTINGS))
    half = len(found) // 2
    assert [v for _, v in found[half:]] == [v for _, v in reversed(found[:half])]
    assert [repeat for repeat, _ in found] == [0] * half + [1] * half


def test_nothing_is_measured_twice():
    done = [measured(NONE, 0, 1), measured(NONE, 0, 4), measured(NONE, 1, 4)]
    left = outstanding(SETTINGS, [ended(NONE)], done)
    assert len(left) == 2 * 9 - 1
    assert [turn.missing for turn in left if turn.variant == NONE] == [((1, 0),)]


def test_rounds_are_told_apart():
    settings = SETTINGS.model_copy(update={"rounds": 3, "concurrency": [1]})
    done = [measured(NONE, repeat, 1) for repeat in (0, 1, 4)]  # both of engine 0, one of engine 1
    left = outstanding(settings, [], done)
    assert [turn.missing for turn in left if turn.variant == NONE] == [((1, 2),), ((1, 0), (1, 2))]


def test_engines_of_a_repeat_run_at_the_same_time_if_asked_to():
    left = outstanding(SETTINGS, [], [])
    assert [len(batch) for batch in batches(SETTINGS, left)] == [1] * 18
    together = batches(SETTINGS.model_copy(update={"together": True}), left)
    assert [len(batch) for batch in together] == [9, 9]
    assert {turn.repeat for turn in together[0]} == {0}


def ended(variant: Variant, repeat: int = 0, error: str | None = None) -> EngineRecord:
    return EngineRecord(variant=variant, repeat=repeat, start_s=0, error=error)


def all_of(settings: Settings):
    return [
        measured(variant, repeat, level)
        for repeat, variant in order(settings)
        for level in settings.concurrency
    ]


def test_an_engine_that_failed_is_tried_again_in_a_folder_that_goes_on():
    stock = Variant(kind="stock", draft="a", k=3)
    left = outstanding(SETTINGS, [ended(stock, error="ValueError: no")], [])
    assert len([turn for turn in left if turn.variant == stock]) == 2


def test_parts_of_a_step_that_were_not_taken_are():
    """They are taken of the first repeat alone."""
    done = all_of(SETTINGS)
    engines = [ended(variant) for _, variant in list(order(SETTINGS))[:9]]
    assert outstanding(SETTINGS, engines, done) == []
    (left,) = outstanding(SETTINGS, engines[1:], done)
    assert (left.repeat, left.variant, left.missing) == (0, NONE, ())


def test_a_round_of_engines_beside_each_other_is_made_anew_for_all():
    settings = SETTINGS.model_copy(update={"together": True})
    done = all_of(settings)
    lost = next(m for m in done if m.repeat == 1 and m.concurrency == 4)
    engines = [ended(variant, repeat) for repeat, variant in order(settings)]
    left = outstanding(settings, engines, [m for m in done if m != lost])
    assert len(left) == 9
    assert {(turn.repeat, turn.missing) for turn in left} == {(1, ((4, 0),))}


def test_of_what_was_measured_twice_the_later_counts(tmp_path, context):
    folder = Folder(tmp_path)
    folder.begin(SETTINGS, context)
    first = measured(NONE, 0, 1)
    later = first.model_copy(update={"seconds": 2.0})
    folder.add(first)
    folder.add(later)
    assert folder.measurements() == [later]


@pytest.mark.parametrize("update", [{"versions": {"vllm": "0.33"}}, {"device": "another"}])
def test_a_folder_goes_on_where_it_began(tmp_path, context, update):
    folder = Folder(tmp_path)
    folder.begin(SETTINGS, context)
    with pytest.raises(SpeculativeConfigError, match=next(iter(update))):
        folder.begin(SETTINGS, context.model_copy(update=update))


def test_a_folder_goes_on_with_the_same_settings_alone(tmp_path, context):
    folder = Folder(tmp_path / "bench")
    folder.begin(SETTINGS, context)
    folder.begin(SETTINGS, context)
    with pytest.raises(SpeculativeConfigError, match=r"max_tokens is 32\. Allowed: 64"):
        folder.begin(SETTINGS.model_copy(update={"max_tokens": 32}), context)


def test_what_was_added_is_read_back_and_a_cut_line_is_not(tmp_path, context):
    folder = Folder(tmp_path)
    folder.begin(SETTINGS, context)
    first, second = measured(NONE, 0, 1), measured(NONE, 0, 4)
    folder.add(first)
    folder.add(second)
    file = tmp_path / "measurements.jsonl"
    assert folder.measurements() == [first, second]
    file.write_text(file.read_text()[:-10])
    assert folder.measurements() == [first]
    folder.begin(SETTINGS, context)
    folder.add(second)
    assert folder.measurements() == [first, second]
    assert folder.settings() == SETTINGS


def test_a_folder_without_a_bench_is_named(tmp_path):
    with pytest.raises(SpeculativeConfigError, match=r"bench\.json"):
        Folder(tmp_path).settings()


def test_tokens_and_times_of_an_answer():
    found = measured(NONE, 0, 1)
    assert found.tokens == 11
    assert found.tokens_per_s == 11
    assert found.tpot_s == [pytest.approx(0.2)]


def test_steps_are_sorted_by_their_context():
    """The prompt's step and the last are left out; the second begins at 121, the third at 125."""
    assert [(b.start, b.end, b.steps, b.tokens) for b in by_context([ANSWER])] == [(0, 128, 2, 8)]
    long = Answer(127, list(range(12)), [1, 3, 3, 3, 2], 0.1, 1.0)
    assert [(b.start, b.end, b.steps) for b in by_context([long])] == [(128, 256, 3)]
    longer = Answer(1000, list(range(40)), [1, 23, 4, 4, 4, 4], 0.1, 1.0)
    assert [(b.start, b.end, b.steps) for b in by_context([longer])] == [(512, 1024, 1), (1024, 2048, 3)]


def test_only_ours_is_given_our_options():
    ours = engine_arguments(SETTINGS, "ours", "a", 3)
    stock = engine_arguments(SETTINGS, "stock", "a", 3)
    assert ours.pop("additional_config") == {"eagle_ext": {"strict": False}}
    assert ours == stock
    assert stock["speculative_config"] == {
        "method": "eagle3", "model": "a", "num_speculative_tokens": 3
    }  # fmt: skip
    assert "speculative_config" not in engine_arguments(SETTINGS, "none", None, 0)


def test_dummy_weights_are_the_targets_alone():
    settings = SETTINGS.model_copy(update={"dummy": True, "synthetic_acceptance": [0.9, 0.7, 0.5]})
    found = engine_arguments(settings, "ours", "b", 2)
    assert found["load_format"] == "dummy"
    speculative = found["speculative_config"]
    assert speculative["draft_load_config"] == {"load_format": "auto"}
    assert speculative["synthetic_acceptance_rates"] == [0.9, 0.7]


def test_a_small_k_takes_what_it_can_of_an_acceptance_length():
    settings = SETTINGS.model_copy(update={"synthetic_acceptance": [4.5]})
    lengths = [
        engine_arguments(settings, "ours", "a", k)["speculative_config"]["synthetic_acceptance_length"]
        for k in (3, 5)
    ]
    assert lengths == [4, 4.5]
