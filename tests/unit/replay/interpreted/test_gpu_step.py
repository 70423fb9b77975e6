"""Steps as a GPU runs them: `GpuOps` gathers for all cache groups, verifies and commits, against the
reference in plain PyTorch, layer by layer."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from vllm.v1.worker.gpu.model_states import recoverssm

from tests.unit.replay.cases import DEVICE, Shape, gating, rows, state_cache
from vllm_eagle_ext.replay.cache_groups import CacheGroups, GroupsCommit
from vllm_eagle_ext.replay.on_gpu import GpuOps
from vllm_eagle_ext.replay.ops import reference, triton, triton_chunked
from vllm_eagle_ext.replay.ops.types import Align, Batch, BlockPlaces, CommitPlan, Layer, Step

SHAPE = Shape(T=4)
GROUPS = (("0.a", "0.b"), ("1.a",), ("2.a",))
COLUMNS, SIZE, WHOLE, BLOCKS = 5, 16, 5, 1 + 3 * 5 * 5
COUNTS, SAMPLED = [4, 2, 3], [3, 2, 1]  # per verified request
COMPUTED = [[13, 30, 15, 2, 40], [16, 32, 17, 6, 44]]  # per request of the whole batch, in two steps


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def layers(kernels) -> dict[str, SimpleNamespace]:
    names = [name for group in GROUPS for name in group]
    return {
        name: SimpleNamespace(
            state_cache=state_cache(SHAPE, BLOCKS, seed)[0], gating=gating(SHAPE, seed + 50),
            conv_kernel_size=SHAPE.W, replay_kernels=kernels,
        )
        for seed, name in enumerate(names)
    }  # fmt: skip


class Batches:
    """Three verified requests, alone or among five."""

    def __init__(self, *, aligned: bool, mixed: bool) -> None:
        self.aligned, self.order = aligned, [3, 0, 2] if mixed else [0, 1, 2]
        self.indices = ints(self.order) if mixed else None
        self.others = ints([1, 4]) if mixed else None
        self.starts = ints([0, 4, 6, 9])
        blocks = 1 + torch.randperm(BLOCKS - 1, generator=torch.Generator().manual_seed(0))
        self.tables = blocks.to(torch.int32).to(DEVICE).view(len(GROUPS), WHOLE, COLUMNS).unbind()
        self.sampled = ints([0] * WHOLE)
        self.sampled[self.order] = ints(SAMPLED)

    def lengths(self, computed: list[int]) -> torch.Tensor:
        lengths = ints(computed) + 1
        lengths[self.order] = ints(computed)[self.order] + ints(COUNTS)
        return lengths

    def step(self, computed: list[int]) -> Step:
        lengths = self.lengths(computed) if self.aligned else None
        places = BlockPlaces(len(COUNTS), self.indices, lengths, SIZE)
        others = self.others
        return Step(
            batch=Batch(self.starts[:-1], self.starts), num_rows=9, num_requests=3, rows_per_request=4,
            rows=None, other_rows=self.starts, places=places,
            other_places=None if others is None else places._replace(requests=2, indices=others),
            num_computed=ints(computed) if self.aligned else None, ones=self.starts, built={},
        )  # fmt: skip

    def expected_blocks(self, group: int, requests: list[int], computed: list[int]) -> torch.Tensor:
        columns = (self.lengths(computed) - 1) // SIZE if self.aligned else ints([0] * WHOLE)
        return self.tables[group][requests, columns[requests].long()]

    def by_the_reference(self, layer, group: int, step_rows, computed: list[int]) -> torch.Tensor:
        table = self.tables[group]
        blocks = self.expected_blocks(group, self.order, computed)
        batch, out = Batch(blocks, self.starts), torch.zeros_like(step_rows.value)
        reference.verify(step_rows, layer.gating, layer.state_cache, batch, out)
        align = Align.of([table], ints(computed), SIZE) if self.aligned else None
        plan = CommitPlan(*torch.zeros(4, len(COUNTS), dtype=torch.int32, device=DEVICE))
        reference.plan(batch, self.sampled, self.indices, align, plan)
        reference.Commit([Layer(layer.state_cache, layer.gating, 0)], SHAPE.W - 1)(batch, plan)
        return out


def assert_equal(mine, want) -> None:
    torch.testing.assert_close(mine.state_cache.state, want.state_cache.state, rtol=1e-4, atol=1e-5)
    assert torch.equal(mine.state_cache.conv, want.state_cache.conv)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(triton, id="sequential"),
        pytest.param(triton_chunked, id="chunked", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("mixed", [False, True], ids=["uniform", "mixed"])
@pytest.mark.parametrize(
    "aligned", [pytest.param(False, id="none", marks=pytest.mark.full), pytest.param(True, id="align")]
)
def test_steps_of_three_cache_groups(monkeypatch, aligned, mixed, kernels):
    ops = GpuOps()
    if DEVICE == "cpu":  # without a device vLLM's own kernel, which the warm-up calls, is no kernel
        monkeypatch.setattr(recoverssm, "_postprocess_recoverssm_align_kernel", mock.MagicMock())
    mine, want, batches = layers(kernels), layers(kernels), Batches(aligned=aligned, mixed=mixed)
    groups = CacheGroups(len(GROUPS), 8, torch.device(DEVICE), ops)
    for names in GROUPS:
        groups.join(list(names))
    commit = GroupsCommit(groups, SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=mine),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    ))  # fmt: skip
    for number, computed in enumerate(COMPUTED):
        first = groups.step_for_first_group(batches.tables[0], batches.step(computed))
        steps = [first, *(groups.step_for_group(g, batches.tables[g], first) for g in (1, 2))]
        for group, names in enumerate(GROUPS):
            if mixed:
                others = groups.other_blocks(group, first)
                assert torch.equal(others, batches.expected_blocks(group, [1, 4], computed))
            for name in names:
                step_rows = rows(SHAPE, 9, seed=100 * number + int(group))
                out = torch.full_like(step_rows.value, float("nan"))
                layer = mine[name]
                kernels.verify(step_rows, layer.gating, layer.state_cache, steps[group].batch, out)
                expected = batches.by_the_reference(want[name], group, step_rows, computed)
                torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        commit(first, batches.sampled)
        for name, layer in mine.items():
            assert_equal(layer, want[name])
        batches.tables = tuple(table.clone() for table in batches.tables)  # they stand elsewhere now
