"""Steps of many cache groups are those of each layer by itself, and what is wrong in them is seen."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from vllm.v1.worker.gpu.model_states import recoverssm

from tests.support.broken_kernels import broken
from tests.support.group_check import check_groups
from tests.unit.replay.cases import DEVICE
from vllm_eagle_ext.replay.cache_groups import CacheGroups
from vllm_eagle_ext.replay.on_gpu import GpuOps
from vllm_eagle_ext.replay.ops import triton, triton_chunked
from vllm_eagle_ext.replay.ops.types import BlockTables
from vllm_eagle_ext.replay.self_check.compared import Kernels
from vllm_eagle_ext.replay.self_check.step import Shapes, gpu_kernel

SMALL = Shapes(H=1, HV=1, DK=16, DV=16, T=3)
SEQUENTIAL = Kernels("sequential", triton, True, lambda batch, _: batch, gpu_kernel)
CHUNKED = Kernels("chunked", triton_chunked, False, lambda batch, _: batch, gpu_kernel)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    if DEVICE == "cpu":  # without a device vLLM's own kernel, which the warm-up calls, is no kernel
        monkeypatch.setattr(recoverssm, "_postprocess_recoverssm_align_kernel", mock.MagicMock())


def differing(kernels: Kernels) -> set[str]:
    result = check_groups(kernels, SMALL, torch.device(DEVICE), 2, GpuOps())
    print(result)
    assert result.error is None
    assert {part.name for part in result.parts} == {
        "outputs", "cache", "outputs, of a mixed batch", "cache, of a mixed batch",
        "blocks of prompts, of a mixed batch",
    }  # fmt: skip
    return {part.name for part in result.parts if not part.ok}


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(SEQUENTIAL, id="sequential"),
        pytest.param(CHUNKED, id="chunked", marks=pytest.mark.long),
    ],
)
def test_cache_groups(kernels):
    assert differing(kernels) == set()


def test_a_commit_that_takes_all_layers_for_one_group_is_seen():
    changed = broken(SEQUENTIAL, "no commit")
    changed.module.Commit = lambda layers, history: triton.Commit(
        [(*layer, 0) for *layer, _ in layers] if len(layers) > 1 else layers, history
    )
    assert {"cache", "cache, of a mixed batch"} <= differing(changed)


def test_tables_that_are_read_where_they_were_are_seen(monkeypatch):
    def store(self, group, block_table):
        if group < len(self._tables):
            self._tables[group] = block_table  # its address stays that of the step before
            return False
        self._tables.append(block_table)
        self._addresses = None
        return True

    monkeypatch.setattr(CacheGroups, "_store_table", store)
    assert {"outputs", "cache"} <= differing(SEQUENTIAL)


def test_a_gather_of_another_group_is_seen(monkeypatch):
    def turned(self, start, end):
        tables = tuple(self._tables[start:end][::-1])
        return BlockTables(tables, BlockTables.of(tables).addresses)

    monkeypatch.setattr(CacheGroups, "_as_tables", turned)
    assert "outputs" in differing(SEQUENTIAL)
