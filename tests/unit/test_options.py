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


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"aux_layers": "input"}, 'write {"eagle_ext": {"aux_layers": ..}}'),
        ({"hybrid_state": "replay"}, 'write {"eagle_ext": {"hybrid_state": ..}}'),
        ({"norm_output": False}, 'write {"eagle_ext": {"norm_output": ..}}'),
        ({"adaptive_verification": True}, 'write {"eagle_ext": {"adaptive_verification": ..}}'),
        ({"eagle-ext": {"aux_layers": "input"}}, 'write "eagle_ext" for "eagle-ext"'),
        ({"eagleext": {}}, 'write "eagle_ext" for "eagleext"'),
        ({"eagle_ex": {}}, 'write "eagle_ext" for "eagle_ex"'),
        ({"EAGLE_EXT": {}}, 'write "eagle_ext" for "EAGLE_EXT"'),
        ({"eagle_ext": {}, "eagle_exts": {}}, 'write "eagle_ext" for "eagle_exts"'),
        ({"vllm_eagle_ext": {"strict": False}}, 'write "eagle_ext" for "vllm_eagle_ext"'),
        ({"eagle_ext_options": {"aux_layer": "output"}}, 'write "eagle_ext" for "eagle_ext_options"'),
        (
            {"eagle_extension": {"aux_layers": "input", "strict": False}},
            'write "eagle_ext" for "eagle_extension"',
        ),
        ({"speculators": {"hybrid_state": "per_token"}}, 'write "eagle_ext" for "speculators"'),
        ({"aux_layer": "input"}, 'write {"eagle_ext": {"aux_layers": ..}}'),
        ({"auxlayers": [1, 2]}, 'write {"eagle_ext": {"aux_layers": ..}}'),
        ({"gate-layout": "concat"}, 'write {"eagle_ext": {"gate_layout": ..}}'),
        ({"hybrid-state": "replay"}, 'write {"eagle_ext": {"hybrid_state": ..}}'),
    ],
    ids=str,
)
def test_options_that_nobody_would_read(given, remedy):
    with pytest.raises(OptionsError) as caught:
        parse_options(given)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize("given", [{"strict": False}, {"enabled": True}, {"aux_layers": {"of": "x"}}])
def test_what_may_be_another_plugins_is_warned_of(given, vllm_log):
    assert parse_options(given) == Options()
    (name,) = given
    (record,) = vllm_log.containing(f"additional_config.{name}")
    assert record.levelno == logging.WARNING
    assert "unless another plugin reads it" in record.getMessage()


@pytest.mark.parametrize("key", ["eagle", "next_ext", "lmcache", "layers", "output_norm"])
@pytest.mark.parametrize(
    "value",
    [
        {"aux_layers": "input", "cache": 1},
        {"aux_layers": "of theirs"},
        {"enabled": True, "strict": False},
        {},
        "input",
    ],
)
def test_keys_of_other_plugins_are_theirs(key, value, vllm_log):
    assert parse_options({key: value}) == Options()
    assert not vllm_log.containing(key)


@pytest.mark.parametrize("key", ["enable", "restrict"])
def test_what_is_nearly_a_common_word_is_not_warned_of(key, vllm_log):
    assert parse_options({key: True}) == Options()
    assert not vllm_log.containing(key)


@pytest.mark.parametrize("key", ["eagle_text", "eagle_next", "eagle3_ext"])
@pytest.mark.parametrize("value", [{"tokens": 3}, True, ["a"]])
def test_names_like_ours_may_be_another_plugins(key, value, vllm_log):
    assert parse_options({key: value}) == Options()
    assert not vllm_log.containing(key)


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
