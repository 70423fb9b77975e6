"""Further keys of speculative_config that no start takes are refused before one."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from vllm.config import SpeculativeConfig

from tests.support.releases import is_release
from vllm_eagle_ext.checkpoint.findings import Problem
from vllm_eagle_ext.compat import vllm_version
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.engine_rules.speculative_keys import (
    AT_LEAST_ONE,
    AT_LEAST_ZERO,
    INNER,
    KEYS,
    MISTAKEN,
    NO_NULL,
    SAMPLING,
    SINCE_033,
    choices_of,
    speculative_keys_are_vllms,
)

FIELDS = {field.name: field for field in dataclasses.fields(SpeculativeConfig)}
VALUES = ("x", "5", "true", "", 5, 0, -1, -1.0, 1, 0.5, 1.0, True, [5], {"a": 5}, 2**31, 10**30)


def refusals(given, **engine) -> list[Problem]:
    described = EngineFacts(**{"release": vllm_version(), "speculative": given} | engine)
    return list(speculative_keys_are_vllms.check(described))


def field_takes(key, value):
    """As SpeculativeConfig has it; `Field` stands in the default."""
    field = FIELDS[key]
    annotation = (
        Annotated[field.type, field.default] if isinstance(field.default, FieldInfo) else field.type
    )
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def test_the_keys_are_vllms():
    later = SINCE_033 if is_release("0.32") else set()
    assert (set(KEYS) | INNER | {MISTAKEN}) - later == set(FIELDS)


def test_keys_of_the_newest_release_are_taken_where_another_machine_may_serve():
    elsewhere = {"release": "0.32.0", "release_is_known": False}
    assert not refusals({SAMPLING: "fly", "fly_window_size": 2}, **elsewhere)
    assert refusals({"fly_window_size": 0}, **elsewhere)


@pytest.mark.parametrize("key", [*AT_LEAST_ZERO, "fly_window_size", "fly_entropy_top_k"])
def test_bounds_of_keys_of_the_newest_release(key):
    assert refusals({key: -1}, release="0.33.0")
    assert not refusals({key: 1}, release="0.33.0")


@pytest.mark.parametrize(("k", "keys", "least"), [(1, {}, 2), (3, {"fly_window_size": 3}, 4)])
def test_fly_needs_later_tokens(k, keys, least):
    given, newest = {SAMPLING: "fly"} | keys, {"release": "0.33.0"}
    (found,) = refusals(given, k=k, **newest)
    assert f"at least {least} with" in found.allowed
    assert not refusals(given, k=least, **newest)


@pytest.mark.parametrize("key", [key for key, kinds in KEYS.items() if kinds and key in FIELDS])
def test_what_vllm_refuses_by_type_is_refused_and_nothing_else(key):
    # A method is judged by the draft that is named with it; no K is what --spec-tokens leaves.
    values = {"method": (5, {"a": 5}), "num_speculative_tokens": VALUES}.get(key, (*VALUES, None))
    for value in values:
        given = {SAMPLING: "synthetic", key: value} if key.startswith("synthetic") else {key: value}
        found = [problem for problem in refusals(given) if problem.field.endswith(key)]
        assert bool(found) == (not field_takes(key, value)), value


def test_the_choices_are_vllms():
    for key, choices in choices_of(vllm_version()).items():
        if choices is None:
            assert field_takes(key, "of a platform")
            continue
        assert all(field_takes(key, choice) for choice in choices)
        assert not field_takes(key, "another")
    assert set(AT_LEAST_ONE) | NO_NULL < set(KEYS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": 1}, ("speculative_config.x", "the keys attention_backend", "What to do: remove the key")),
        ({"quantisation": "fp8"}, ('write "quantization", if that is meant, or remove the key',)),
        ({"num_steps": 3}, ("num_steps", 'write "num_speculative_tokens"')),
        ({"tensor_parallel_size": 1}, ('write "draft_tensor_parallel_size"',)),
        ({"draft_model": "x"}, ('write "model"',)),
        ({"draft_tensor_parallel_size": "x"}, ("a whole number",)),
        ({"draft_tensor_parallel_size": 0}, ("a whole number of at least 1",)),
        ({"rejection_sample_method": "x"}, ("block", "standard, synthetic")),
        ({"parallel_drafting": None}, ("true or false", "leave the key out")),
        ({"quantization": 5}, ("speculative_config.quantization", "5", "text")),
        ({"max_model_len": "1k"}, ("max_model_len", "a whole number")),
        ({"parallel_drafting": {}}, ("parallel_drafting", "true or false")),
        ({"a\x1b[2J": 1}, ("a\\x1b[2J",)),
    ],
)
def test_refused(given, words):
    (found,) = refusals(given)
    assert all(word in str(found) for word in words)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"rejection_sample_method": "synthetic"}, "rejection_sample_method"),
        ({"synthetic_acceptance_length": 2}, "synthetic_acceptance_length"),
        ({SAMPLING: "synthetic", "synthetic_acceptance_length": 9}, "synthetic_acceptance_length"),
        ({SAMPLING: "synthetic", "synthetic_acceptance_rates": [0.5]}, "synthetic_acceptance_rates"),
        ({SAMPLING: "synthetic", "synthetic_acceptance_rates": [0, 1, 0]}, "synthetic_acceptance_rates"),
        ({"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab"),
        ({"index_share_for_mtp_iteration": True}, "index_share_for_mtp_iteration"),
        ({"dspark_draft_topk": 3}, "dspark_draft_topk"),
        ({"draft_load_config": "x"}, "draft_load_config"),
        ({"attention_backend": "flash_attn"}, None),
        ({"attention_backend": "auto"}, None),
        ({SAMPLING: "synthetic", "synthetic_acceptance_length": 4}, None),
        ({SAMPLING: "synthetic", "synthetic_acceptance_rates": [1, 0.5, 0.5]}, None),
        ({"use_heterogeneous_vocab": False, "dspark_draft_topk": None}, None),
    ],
)
def test_keys_that_vllm_refuses_together(given, field):
    found = [problem.field for problem in refusals(given, method="eagle3", k=3)]
    assert found == ([f"speculative_config.{field}"] if field else [])


def test_check_and_start_agree(check, draft):
    result = check(draft, "-k", "4", "--speculative", '{"x": 1}')
    assert result.exit_code == 1
    assert "error vllm_says: speculative_config.x is 1" in result.stdout
    assert check(draft, "-k", "4", "--speculative", '{"max-model-len": "64"}').exit_code == 0


def test_k_may_stand_among_the_keys(check, draft):
    found = check(draft, "--speculative", '{"num_speculative_tokens": 5}')
    assert '"num_speculative_tokens": 5' in found.stdout
    found = check(draft, "--speculative", '{"num-speculative-tokens": 2147483647}')
    assert "error k_can_pay: num_speculative_tokens is 2147483647" in found.stdout
    assert check(draft, "--speculative", '{"num_speculative_tokens": 0}').exit_code == 1


@pytest.mark.parametrize(("asked", "code"), [(512, 0), (513, 1), ("513", 1), (10**30, 1)])
def test_the_drafts_own_length(check, draft, asked, code):
    found = check(draft, "-k", "4", "--speculative", json.dumps({"max_model_len": asked}))
    assert found.exit_code == code
    assert ("draft_length_fits: speculative_config.max_model_len is" in found.stdout) == bool(code)


def test_method_and_model_are_those_of_the_command(check, draft):
    asked = check(draft, "--speculative", '{"method": "dflash"}').stdout
    assert asked == check(draft, "--method", "dflash").stdout
    assert check(draft, "--speculative", json.dumps({"model": str(draft)})).exit_code == 0
    result = check(draft, "--speculative", '{"model": "org/other"}')
    assert result.exit_code == 2
    assert "speculative_config.model is 'org/other'. Allowed: the draft" in result.stderr
