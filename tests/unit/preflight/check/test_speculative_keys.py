"""Further keys of speculative_config that no start takes are refused before one."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.config import SpeculativeConfig

from vllm_eagle_ext.checkpoint.findings import Problem
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.engine_rules.speculative import INNER, KEYS, speculative_keys_are_vllms

FIELDS = {field.name: field for field in dataclasses.fields(SpeculativeConfig)}
VALUES = ("x", "5", "true", "", 5, 0, 1, 0.5, 1.0, True, [5], {"a": 5}, 2**31, 10**30)


def refusals(given) -> list[Problem]:
    engine = EngineFacts(release="0.32.0", speculative=given)
    return list(speculative_keys_are_vllms.check(engine))


def test_the_keys_are_vllms():
    assert set(KEYS) | INNER == set(FIELDS)


@pytest.mark.parametrize("key", [key for key, kinds in KEYS.items() if kinds])
def test_what_is_refused_by_type_vllm_refuses_too(key):
    taken = TypeAdapter(FIELDS[key].type)
    for value in VALUES:
        if refusals({key: value}):
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
    (found,) = refusals(given)
    assert all(word in str(found) for word in words)


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
