from __future__ import annotations

import pickle

import pytest

from vllm_eagle_ext import errors

PARTS = {"field": "k", "value": 0, "allowed": "1 or more", "remedy": "set it"}


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_message_has_all_four_parts_and_survives_pickling(name):
    error = getattr(errors, name)(**PARTS)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert isinstance(error, ValueError)
    for part in ("k is 0", "1 or more", "set it"):
        assert part in str(error)
