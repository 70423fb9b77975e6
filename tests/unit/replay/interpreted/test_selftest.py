"""What `selftest` runs on a GPU beside the start's check: many cache groups, and the steps it times."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from vllm.v1.worker.gpu.model_states import recoverssm

from tests.support.broken_kernels import broken
from tests.unit.replay.cases import DEVICE
from vllm_eagle_ext.measure.selftest import checks, timing
from vllm_eagle_ext.replay import cache_groups
from vllm_eagle_ext.replay.on_gpu import GpuOps
from vllm_eagle_ext.replay.ops import triton, triton_chunked
from vllm_eagle_ext.replay.ops.types import BlockTables
from vllm_eagle_ext.replay.self_check.compared import Kernels
from vllm_eagle_ext.replay.self_check.step import Shapes, gpu_kernel

SMALL = Shapes(H=1, HV=1, DK=16, DV=16, T=3)
HERE = torch.device(DEVICE)
KERNELS = {
    "sequential": Kernels("sequential", triton, True, lambda batch, _: batch, gpu_kernel),
    "chunked": Kernels("chunked", triton_chunked, False, lambda batch, _: batch, gpu_kernel),
}


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    if DEVICE == "cpu":  # without a device vLLM's own kernel, which the warm-up calls, is no kernel
        monkeypatch.setattr(recoverssm, "_postprocess_recoverssm_align_kernel", mock.MagicMock())
    monkeypatch.setattr(checks, "replay_ops", GpuOps)


def failed(kernels: Kernels) -> set[str]:
    result = checks.check_groups(kernels, SMALL, HERE, 2)
    print(result)
    assert result.error is None
    assert {part.name for part in result.parts} == {
        "outputs", "cache", "outputs, of a mixed batch", "cache, of a mixed batch",
        "blocks of prompts, of a mixed batch",
    }  # fmt: skip
    return {part.name for part in result.parts if not part.ok}


@pytest.mark.parametrize("name", ["sequential", pytest.param("chunked", marks=pytest.mark.long)])
def test_cache_groups(name):
    assert failed(KERNELS[name]) == set()


def test_a_commit_that_takes_all_layers_for_one_group_is_seen():
    right = KERNELS["sequential"].replay
    changed = broken(KERNELS["sequential"], "no commit")
    changed.replay.Commit = lambda layers, history: right.Commit(
        [(*layer, 0) for *layer, _ in layers] if len(layers) > 1 else layers, history
    )
    assert {"cache", "cache, of a mixed batch"} <= failed(changed)


def test_tables_that_are_read_where_they_were_are_seen(monkeypatch):
    def put(self, group, block_table):
        if group < len(self._tables):
            self._tables[group] = block_table  # its address stays that of the step before
            return False
        self._tables.append(block_table)
        self._addresses = None
        return True

    monkeypatch.setattr(cache_groups.CacheGroups, "_store_table", put)
    assert {"outputs", "cache"} <= failed(KERNELS["sequential"])


def test_a_gather_of_another_group_is_seen(monkeypatch):
    def turned(self, start, end):
        tables = tuple(self._tables[start:end][::-1])
        return BlockTables(tables, BlockTables.of(tables).addresses)

    monkeypatch.setattr(cache_groups.CacheGroups, "_as_tables", turned)
    assert "outputs" in failed(KERNELS["sequential"])


@pytest.mark.parametrize("name", KERNELS)
def test_the_steps_that_are_timed(name):
    """Both schemes keep the same states: replay after a commit, the other one behind each row."""
    k, batch, accepted = 3, 2, 2
    scheme = timing.Scheme((1, 1), batch, k, DEVICE, layers=1)
    with torch.inference_mode():
        scheme.replay(KERNELS[name], accepted)()
        scheme.per_token(KERNELS[name], accepted)()
    for cache, states in zip(scheme.layers, scheme.per_token_states, strict=True):
        mine = cache.state[scheme.replay_batch.state_blocks.long()]
        theirs = states[scheme.table[:, accepted - 1].long()]
        assert mine.abs().max() > 0.1
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
