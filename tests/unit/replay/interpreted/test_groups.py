"""A commit over several cache groups leaves what one commit per group leaves, bit for bit."""

from __future__ import annotations

import pytest

from tests.unit.replay.grouped import assert_equals_one_by_one
from vllm_eagle_ext.replay.ops import triton as ops


@pytest.mark.parametrize("aligned", [False, True], ids=["none", "align"])
def test_one_commit_for_all_groups(aligned):
    assert_equals_one_by_one(ops, 5, aligned=aligned)
