from __future__ import annotations

import pytest

from vllm_eagle_ext.checkpoint import resolve_aux_layers
from vllm_eagle_ext.errors import UnsupportedDraftError

KEY = "eagle_aux_hidden_state_layer_ids"
N = 12


def nested(*ids: int) -> dict:
    return {"eagle_config": {KEY: list(ids)}}


@pytest.mark.parametrize(
    ("config", "override", "boundaries", "words"),
    [
        pytest.param({}, "auto", (2, 6, 9), "default", id="no_ids"),
        pytest.param({KEY: []}, "auto", (2, 6, 9), "default", id="empty_list"),
        pytest.param(nested(1, 3, 5, 7, 9), "auto", (2, 4, 6, 8, 10), "output", id="nested_from_1"),
        pytest.param(nested(2, 6, 8), "auto", (3, 7, 9), "output", id="nested_not_from_1"),
        pytest.param({KEY: [2, 6, 9]}, "auto", (2, 6, 9), "top level", id="top_level"),
        pytest.param(nested(6, 9, 12), "auto", (6, 9, 12), "contain N", id="contains_n"),
        pytest.param({KEY: [2, 4], **nested(1, 3)}, "auto", (2, 4), "top level", id="top_is_plus_1"),
        pytest.param({KEY: [2, 4], **nested(2, 4)}, "auto", (2, 4), "top level", id="lists_equal"),
        pytest.param(nested(1, 3), "boundary", (1, 3), "option", id="option_boundary"),
        pytest.param({KEY: [1, 3]}, "output", (2, 4), "option", id="option_output"),
        pytest.param(nested(1, 3), [0, 12], (0, 12), "option", id="option_list"),
    ],
)
def test_rule(config, override, boundaries, words):
    layers = resolve_aux_layers(config, num_target_layers=N, override=override)
    assert layers.boundaries == boundaries
    assert words in layers.rule


@pytest.mark.parametrize(
    ("config", "override", "words"),
    [
        pytest.param({KEY: [1, 3], **nested(2, 4)}, "auto", "equal lists", id="contradiction"),
        pytest.param(nested(1, 1, 3), "auto", "each boundary once", id="repeated"),
        pytest.param(nested(5, 3, 1), "auto", "ascending order", id="unsorted"),
        pytest.param({KEY: [2, 13]}, "auto", "0 to N=12", id="beyond_n"),
        pytest.param({KEY: [-1, 3]}, "auto", "0 to N=12", id="negative"),
        pytest.param({KEY: ["1", 3]}, "auto", "list of integers", id="not_integers"),
        pytest.param({KEY: 3}, "auto", "list of integers", id="not_a_list"),
        pytest.param({}, [], "at least one", id="empty_option"),
    ],
)
def test_refused(config, override, words):
    with pytest.raises(UnsupportedDraftError, match=words):
        resolve_aux_layers(config, num_target_layers=N, override=override)
