"""Further keys of speculative_config that no start takes are refused before one."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.config import SpeculativeConfig

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.preflight.speculative_keys import INNER, KEYS, refuse_foreign_keys

FIELDS = {field.name: field for field in dataclasses.fields(SpeculativeConfig)}
VALUES = ("x", "5", "true", "", 5, 0, 1, 0.5, 1.0, True, [5], {"a": 5}, 2**31, 10**30)


def test_the_keys_are_vllms():
    assert set(KEYS) | INNER == set(FIELDS)


@pytest.mark.parametrize("key", [key for key, kinds in KEYS.items() if kinds])
def test_what_is_refused_by_type_vllm_refuses_too(key):
    taken = TypeAdapter(FIELDS[key].type)
    for value in VALUES:
        try:
            refuse_foreign_keys({key: value})
        except SpeculativeConfigError:
            with pytest.raises(ValidationError):
                taken.validate_python(value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": 1}, ("speculative_config.x", "the keys attention_backend", "correct its spelling")),
        ({"quantisation": "fp8"}, ('did you mean "quantization"?',)),
        ({"quantization": 5}, ("speculative_config.quantization", "5", "text")),
        ({"max_model_len": "1k"}, ("max_model_len", "a whole number")),
        ({"parallel_drafting": {}}, ("parallel_drafting", "true or false")),
        ({"a\x1b[2J": 1}, ("a\\x1b[2J",)),
    ],
)
def test_refused(given, words):
    with pytest.raises(SpeculativeConfigError) as caught:
        refuse_foreign_keys(given)
    assert all(word in str(caught.value) for word in words)


def test_check_and_start_agree(check, draft):
    result = check(draft, "-k", "4", "--speculative", '{"x": 1}')
    assert result.exit_code == 1
    assert "error speculative_keys_are_vllms: speculative_config.x is 1" in result.stdout
    assert check(draft, "-k", "4", "--speculative", '{"max-model-len": "64"}').exit_code == 0


def test_check_refuses_what_a_start_refuses(check, draft):
    result = check(draft, "-k", "4", "--speculative", '{"x": 1}')
    assert result.exit_code == 1
    assert "error speculative_keys_are_vllms: speculative_config.x is 1" in result.stdout
    assert check(draft, "-k", "4", "--speculative", '{"max-model-len": "64"}').exit_code == 0
