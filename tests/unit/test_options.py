from __future__ import annotations

import pytest

from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.options import Options, parse_options


@pytest.mark.parametrize("given", [{}, None, {"other_plugin": 1}, {"eagle_ext": {}}, object()])
def test_defaults(given):
    assert parse_options(given) == Options()


def test_values():
    options = parse_options(
        {"eagle_ext": {"aux_layers": [0, 2], "norm_output": False, "enabled": False}}
    )
    assert (options.aux_layers, options.norm_output, options.enabled) == ([0, 2], False, False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            {"aux_layer": "auto"}, ["aux_layer is 'auto'", "aux_layers", "enabled"], id="unknown_key"
        ),
        pytest.param(
            {"aux_layers": "outputs"}, ["'outputs'", '"boundary"', "'auto'"], id="unknown_word"
        ),
        pytest.param({"aux_layers": [-1]}, ["[-1]", "list of boundaries"], id="negative"),
        pytest.param({"aux_layers": [True]}, ["[True]"], id="bool_is_no_layer"),
        pytest.param({"enabled": "yes"}, ["'yes'", "true or false"], id="string_is_no_bool"),
        pytest.param({"norm_output": 1}, ["norm_output is 1", "true or false"], id="int_is_no_bool"),
    ],
)
def test_refused_with_field_value_and_what_is_allowed(given, words):
    with pytest.raises(OptionsError) as caught:
        parse_options({"eagle_ext": given})
    for word in words:
        assert word in str(caught.value)


def test_not_an_object():
    with pytest.raises(OptionsError, match="an object of options"):
        parse_options({"eagle_ext": ["enabled"]})
