"""The order of measurements, and what an interrupted tune goes on with."""

from __future__ import annotations

import pytest

from tests.unit.measure.tune.made_up import MadeUp
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.tune.order import (
    CellTurn,
    by_engines,
    loads,
    missing_turns,
    prompts_of,
    swept,
    turns_s,
)
from vllm_eagle_ext.measure.tune.results import CELLS, NONE, ServedConfig, ServedLoad, TuneFolder
from vllm_eagle_ext.measure.tune.run import forecast


def test_every_length_takes_turns_with_no_draft_in_changing_order():
    settings = MadeUp().settings()
    turns = missing_turns(settings, swept(settings), [])
    assert len(turns) == settings.rounds * len(loads(settings))
    first, second = turns[0], turns[len(loads(settings))]
    assert first.served == (NONE, *(ServedConfig(name="held", k=k) for k in settings.lengths))
    assert (second.round, second.served) == (1, first.served[::-1])


@pytest.mark.parametrize("together", [True, False])
def test_a_lost_cell_alone_is_measured_again(together):
    """Beside each other all of its turn: a ratio is of one time."""
    made = MadeUp(together=together)
    settings = made.settings()
    served = swept(settings)
    cells = made.cells("sweep", served)
    assert missing_turns(settings, served, cells) == []
    lost = next(c for c in cells if c.served.k == 2 and c.round == 3 and c.load.requests == 4)
    (turn,) = missing_turns(settings, served, [c for c in cells if c != lost])
    assert (turn.load, turn.round) == (lost.load, 3)
    assert set(turn.served) == (set(served) if together else {lost.served})


def test_engines_behind_each_other_each_have_their_turns():
    made = MadeUp(together=False)
    settings = made.settings()
    groups = list(by_engines(settings, missing_turns(settings, swept(settings), [])))
    assert [{one.engine.name for turn in turns for one in turn.served} for turns in groups] == [
        {"none"},
        {"held"},
    ]
    assert len(list(by_engines(MadeUp().settings(), groups[0]))) == 1


def test_prompts_change_from_round_to_round_and_not_from_length_to_length():
    prompts = [[number] for number in range(40)]
    one = ServedLoad(requests=1, context=64)
    first, second = (prompts_of(CellTurn(one, n, (NONE,)), prompts) for n in (0, 1))
    assert first == [[[0]], [[1]], [[2]], [[3]]]  # behind each other, as more than one text is better
    assert second == [[[4]], [[5]], [[6]], [[7]]]
    (wave,) = prompts_of(CellTurn(ServedLoad(requests=32, context=64), 1, (NONE,)), prompts)
    assert len({tuple(prompt) for prompt in wave}) == 32


def test_a_folder_gives_back_what_was_written(tmp_path):
    made = MadeUp(rounds=1)
    folder = made.folder(tmp_path)
    assert len(folder.cells("sweep")) == len(swept(made.settings())) * len(loads(made.settings()))
    again = TuneFolder(tmp_path)
    again.begin(made.settings(), made.context())
    assert again.cells("closing") == folder.cells("closing") != []
    assert again.settings() == made.settings()


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    made = MadeUp(rounds=1)
    folder = made.folder(tmp_path)
    whole, file = folder.cells("sweep"), tmp_path / CELLS
    file.write_text(file.read_text() + '{"stage": "sweep", "ser')
    again = TuneFolder(tmp_path)
    again.begin(made.settings(), made.context())
    assert again.cells("sweep") == whole
    assert file.read_text().endswith("}\n")


def test_other_settings_are_refused_by_name(tmp_path):
    MadeUp(rounds=1).folder(tmp_path)
    with pytest.raises(SpeculativeConfigError, match="rounds"):
        TuneFolder(tmp_path).begin(MadeUp(rounds=2).settings(), MadeUp().context())


def test_the_time_is_told_before_it_starts(tmp_path):
    made = MadeUp(rounds=2)
    folder = TuneFolder(tmp_path / "new")
    folder.begin(made.settings(), made.context())
    assert any("takes about" in line for line in forecast(made.settings(), folder))
    done = made.folder(tmp_path / "done")
    assert not any("takes about" in line for line in forecast(made.settings(), done))


def test_more_rounds_are_guessed_to_take_longer():
    few, many = (MadeUp(rounds=n).settings() for n in (1, 3))
    whole = [turns_s(s, missing_turns(s, swept(s), [])) for s in (few, many)]
    assert whole[1] == pytest.approx(3 * whole[0])
