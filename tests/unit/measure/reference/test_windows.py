"""The window of a DFlash draft, by which context changes what a row computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.drafts import inspect, valid_draft
from tests.unit.measure.reference.layers import ROWS, tiny_target
from vllm_eagle_ext.measure.reference.published import load_reference

WINDOW = 7


@torch.inference_mode()
def seen_by(dflash, context: torch.Tensor) -> list[list[int]]:
    """Of each row of a block of two, the context tokens that change it."""
    plain = dflash.block(context, 5, 1)
    rows: list[list[int]] = [[], []]
    for position in range(len(context)):
        changed = context.clone()
        changed[position] *= -3
        differs = (dflash.block(changed, 5, 1) - plain).abs().amax(-1) > 1e-6
        for row, seen in zip(rows, differs, strict=True):
            if seen:
                row.append(position)
    return rows


@pytest.mark.parametrize("causal", [True, False])
def test_a_row_sees_the_last_tokens(causal, tmp_path):
    """Of one layer: through a second one a row would see what the other rows of its block saw."""
    spec = inspect(valid_draft("dflash"), tmp_path, draft_window=WINDOW).spec
    walk = load_reference(spec, tmp_path, tiny_target())
    dflash = replace(walk, layers=1, causal=(causal,))
    states = torch.randn(ROWS, dflash.lm_head.shape[-1], generator=torch.Generator().manual_seed(3))
    for row, positions in enumerate(seen_by(dflash, states)):
        assert positions == list(range(ROWS + row - WINDOW + 1, ROWS))
