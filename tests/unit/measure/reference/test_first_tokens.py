"""A window that leaves the first tokens of a text visible: against transformers' layers with such a
mask, and one by one, by which context changes what a row computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.drafts import inspect, valid_draft
from tests.unit.measure.reference.layers import ROWS, assert_equal_rows, both, tiny_target
from vllm_eagle_ext.measure.reference.published import load_reference

WINDOW = 7
FIRST = (0, 1, 3, WINDOW + 5)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.mark.parametrize("first", FIRST)
def test_eagle3_as_transformers_masks(first, tmp_path, target):
    one = both(valid_draft("native"), tmp_path, target, draft_window=WINDOW)
    one.reference, one.host.first = replace(one.reference, first=first), first
    assert_equal_rows(one)
    one.host.first = first + 1
    with pytest.raises(AssertionError):
        assert_equal_rows(one)


@torch.inference_mode()
def seen_by(dflash, context: torch.Tensor) -> list[list[int]]:
    """Of each row of a block of two, the context tokens that change it."""
    plain = dflash.block(context, 5, 1)
    rows: list[list[int]] = [[], []]
    for position in range(len(context)):
        changed = context.clone()
        changed[position] *= -3
        differs = (dflash.block(changed, 5, 1) - plain).abs().amax(-1) > 1e-6
        for row, found in zip(rows, differs, strict=True):
            if found:
                row.append(position)
    return rows


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("first", FIRST)
def test_dflash_sees_the_first_and_the_last(first, causal, tmp_path, target):
    """Of one layer: through a second one a row would see what the other rows of its block saw."""
    spec = inspect(valid_draft("dflash"), tmp_path, draft_window=WINDOW).spec
    walk = load_reference(spec, tmp_path, target)
    dflash = replace(walk.reference, layers=1, first=first, causal=(causal,))
    states = torch.randn(ROWS, dflash.lm_head.shape[-1], generator=torch.Generator().manual_seed(3))
    found = seen_by(dflash, states)
    beginning = range(first)
    for row, positions in enumerate(found):
        last = range(ROWS + row - WINDOW + 1, ROWS)
        assert positions == sorted({*beginning, *last})
