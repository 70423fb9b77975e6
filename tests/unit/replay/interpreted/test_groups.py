"""State blocks and commits of several cache groups at once: what one group after the other gives."""

from __future__ import annotations

import pytest
import torch

from tests.unit.replay.cases import DEVICE
from vllm_eagle_ext.replay.ops.triton_plan import gather_blocks
from vllm_eagle_ext.replay.ops.types import BlockPlaces, BlockTables

ROWS, COLUMNS, SIZE = 300, 6, 16  # more requests than one program's


@pytest.mark.parametrize("is_mapped", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("aligned", [False, True], ids=["none", "align"])
def test_one_gather_for_all_groups(aligned, is_mapped):
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randint(1, 1000, (ROWS, COLUMNS), generator=generator, dtype=torch.int32).to(DEVICE)
        for _ in range(3)
    ]
    lengths = torch.randint(0, SIZE * COLUMNS + 1, (ROWS,), generator=generator, dtype=torch.int32)
    order = torch.randperm(ROWS, generator=generator)[:200] if is_mapped else torch.arange(200)
    columns = ((lengths - 1).clamp(min=0) // SIZE if aligned else lengths * 0)[order].long()
    places = BlockPlaces(
        len(order),
        order.to(torch.int32).to(DEVICE) if is_mapped else None,
        lengths.to(DEVICE) if aligned else None,
        SIZE,
    )
    out = torch.full((3, 290), -1, dtype=torch.int32, device=DEVICE)  # of wider buffers
    gather_blocks(BlockTables.of(tables), places, out[None, :, :280])
    for row, table in zip(out, tables, strict=True):
        assert row[:200].tolist() == table.cpu()[order, columns].tolist()
        assert row[200:].tolist() == [0] * 80 + [-1] * 10
