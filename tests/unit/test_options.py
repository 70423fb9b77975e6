from __future__ import annotations

import logging

import pytest

from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.options import Options, parse_options

pytestmark = pytest.mark.promise("unknown options are refused")


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
        pytest.param({"\ud800": 1}, [r"eagle_ext.\ud800 is 1", "the keys adaptive"], id="no_unicode"),
        pytest.param({"strict": True, "\ud800": 1}, [r"\ud800 is 1"], id="no_unicode_later"),
        pytest.param({"\ud800": 1, "strict": "x"}, [r"\ud800 is 1"], id="no_unicode_first"),
        pytest.param({"aux_layers": "outputs"}, ["'outputs'", '"input"', "'auto'"], id="unknown_word"),
        pytest.param(
            {"aux_layers": [-1]}, ["[-1]", "list of layers whose input is read"], id="negative"
        ),
        pytest.param({"aux_layers": [True]}, ["[True]"], id="bool_is_no_layer"),
        pytest.param(
            {"adaptive_verification": "on"}, ["'on'", "true or false", "untested on GPUs"], id="adaptive"
        ),
        pytest.param({"enabled": "yes"}, ["'yes'", "true or false"], id="string_is_no_bool"),
        pytest.param({"norm_output": 1}, ["norm_output is 1", "true or false"], id="int_is_no_bool"),
    ],
)
def test_refused_with_field_value_and_what_is_allowed(given, words):
    with pytest.raises(OptionsError) as caught:
        parse_options({"eagle_ext": given})
    for word in words:
        assert word in str(caught.value)


def test_options_beside_the_key_are_warned_of(vllm_log):
    assert parse_options({"hybrid_state": "replay", "aux_layers": "input", "other": 1}) == Options()
    (record,) = vllm_log.containing("additional_config has aux_layers, hybrid_state")
    assert record.levelno == logging.WARNING
    assert 'as in {"eagle_ext": {"aux_layers": ..}}' in record.getMessage()


@pytest.mark.parametrize(
    "given",
    [
        {"eagle_ext": {"strict": False}, "enabled": True},
        {"lmcache": {"aux_layers": "input"}, "eagle_next": True, 3: 1},
    ],
)
def test_keys_of_other_plugins_are_theirs(given, vllm_log):
    assert parse_options(given) == Options(strict="eagle_ext" not in given)
    assert not vllm_log.containing("additional_config")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("auxlayers", 'did you mean "aux_layers"?'),
        ("gate-layout", 'did you mean "gate_layout"?'),
        ("Norm_Output", 'did you mean "norm_output"?'),
        ("eagle_ext", 'leave this inner "eagle_ext" out'),
    ],
)
def test_a_misspelt_key_is_recognised(key, hint):
    with pytest.raises(OptionsError) as caught:
        parse_options({"eagle_ext": {key: "auto"}})
    assert hint in caught.value.remedy


def test_not_an_object():
    with pytest.raises(OptionsError, match="an object of options"):
        parse_options({"eagle_ext": ["enabled"]})
