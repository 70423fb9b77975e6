"""The option aux_layers, which wins over what the config says."""

from __future__ import annotations

import pytest

from tests.unit.checkpoint.aux_layers.ids import KEY, dflash, nested, resolve


@pytest.mark.parametrize(
    ("config", "override", "layer_ids", "order"),
    [
        pytest.param(nested(1, 3), "input", (1, 3), (0, 1), id="input"),
        pytest.param({KEY: [1, 3]}, "output", (2, 4), (0, 1), id="output"),
        pytest.param(nested(3, 12), "input", (3, 12), (0, 1), id="input_with_n"),
        pytest.param(dflash(1, 3), "input", (1, 3), (0, 1), id="input_for_dflash"),
        pytest.param({}, "input", (2, 6, 9), (0, 1, 2), id="convention_without_ids"),
        pytest.param(nested(1, 3), [0, 12], (0, 12), (0, 1), id="list"),
        pytest.param(nested(1, 3), (9, 2, 6), (2, 6, 9), (1, 2, 0), id="unsorted_list"),
        pytest.param({}, [4], (4,), (0,), id="list_without_ids"),
        pytest.param({KEY: "damaged"}, [2, 4], (2, 4), (0, 1), id="list_for_damaged_ids"),
        pytest.param(
            {KEY: [1, 3], **nested(5, 7)}, [2, 4], (2, 4), (0, 1), id="list_for_a_contradiction"
        ),
    ],
)
def test_option(config, override, layer_ids, order):
    layers = resolve(config, override=override)
    assert (layers.layer_ids, layers.order) == (layer_ids, order)
    assert "option" in layers.rule or layers.published_ids is None


def test_option_wins_over_the_speculators_rule():
    assert resolve({KEY: [1, 3]}, is_speculators=True, override="output").layer_ids == (2, 4)


def test_option_keeps_the_ids_of_the_config_for_the_log():
    assert resolve(nested(1, 3), override=[5]).published_ids == (1, 3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        pytest.param([], "at least one layer", id="empty"),
        pytest.param([2, 2], "each layer once", id="repeated"),
        pytest.param([2, 13], "0 to N=12", id="beyond_n"),
    ],
)
def test_option_refused(override, words):
    (problem,) = resolve(nested(1, 3), override=override)
    assert words in str(problem)
