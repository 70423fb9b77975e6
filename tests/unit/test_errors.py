from __future__ import annotations

import pickle

import pytest

from vllm_eagle_ext import errors

PARTS = {"field": "k", "value": 0, "allowed": "1 or more", "remedy": "set it"}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("num_speculative_tokens", 0, "num_speculative_tokens is 0"),
        ("aux layers of the draft", [1, 9], "aux layers of the draft are [1, 9]"),
        ("values of fc.weight", "zero", "values of fc.weight are 'zero'"),
        ("a and b of the draft's config.json", 1, "a and b of the draft's config.json are 1"),
        ("class that serves the target", "X", "class that serves the target is 'X'"),
        ("vocab_size at top level and in x", 1, "vocab_size at top level and in x is 1"),
        ("rope_theta of the draft", None, "rope_theta of the draft is missing"),
    ],
)  # fmt: skip
def test_the_sentence_is_grammatical(field, value, expected):
    assert errors.sentence(field, value) == expected


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type(errors.EagleExtError))]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, errors.EagleExtError)])
def test_message_has_all_four_parts_and_survives_pickling(kind):
    error = kind(**PARTS)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert isinstance(error, ValueError)
    for part in ("k is 0", "1 or more", "set it"):
        assert part in str(error)
