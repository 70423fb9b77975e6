"""A builder of metadata without an engine, and batches for it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from tests.support.engine import has_gpu

if has_gpu():
    pytest.skip("the builder's CPU tensors", allow_module_level=True)

from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import MambaSpec

from vllm_eagle_ext.replay.cache_groups import CacheGroups
from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder
from vllm_eagle_ext.replay.ops import cpu

K, MOST, BLOCK, GROUPS = 3, 64, 16, 5
MOST_ROWS, COLUMNS = 8, {"none": 1, "align": 4}  # of a block table
OFF_FOR_MANY = [(1, 4, K), (5, 64, 0)]  # vLLM's schedule of K
STAGED = (
    "non_spec_state_indices_tensor", "spec_token_indx", "non_spec_token_indx", "spec_query_start_loc",
    "non_spec_query_start_loc", "num_accepted_tokens",
)  # fmt: skip


class Ops:
    """`CpuOps` without the tables for its C++ kernel, or reading block tables where they stand."""

    scratch_blocks, can_decode_in_place = 0, True

    def __init__(self, *, by_address: bool = False) -> None:
        self.gathers_by_address, self.gathers = by_address, []

    def gather_blocks(self, tables, places, out):
        self.gathers.append(out.shape[1])
        if self.gathers_by_address:
            columns = tables.tensors[0].shape[1]
            views = [standing_at(address, columns) for address in tables.addresses.tolist()]
            tables = tables._replace(tensors=tuple(views))
        cpu.gather_blocks(tables, places, out)

    def prepare(self, batch, rows_per_request):
        return batch


def standing_at(address: int, columns: int) -> torch.Tensor:
    memory = (ctypes.c_int32 * (MOST_ROWS * columns)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.int32).view(MOST_ROWS, columns)


class Commits:
    """In place of the commit: what it was given."""

    def __init__(self) -> None:
        self.seen = []

    def __call__(self, step, num_sampled):
        self.seen.append((step, num_sampled))


def builder(
    mode: str,
    *,
    graphs: bool,
    ops: Ops | None = None,
    adaptive: bool = False,
    schedule: list[tuple[int, int, int]] | None = None,
) -> ReplayMetadataBuilder:
    """Without the constructor, which wants an engine."""
    made = ReplayMetadataBuilder.__new__(ReplayMetadataBuilder)
    shapes = ((3, 4), (1, 2, 2), (4, 8))
    made.kv_cache_spec = MambaSpec(
        shapes=shapes, dtypes=(torch.bfloat16,) * 3, block_size=BLOCK, mamba_cache_mode=mode,
        num_speculative_blocks=0,
    )  # fmt: skip
    made.use_spec_decode, made.num_spec = True, K
    made.use_full_cuda_graph, made.decode_cudagraph_max_bs = graphs, MOST
    made.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode=mode))
    made.checkpoint_builder = SimpleNamespace(build=lambda *_: None)
    made.gdn_prefill_backend = "triton"
    made.spec_state_indices_tensor = torch.empty((MOST, 1), dtype=torch.int32)
    made.spec_sequence_masks = torch.empty(MOST, dtype=torch.bool)
    for name in STAGED:
        setattr(made, name, torch.empty(MOST * (K + 1) + 1, dtype=torch.int32))
    made.ones = torch.ones(MOST, dtype=torch.int32)
    made.pending, made.group_numbers, made.ops = None, {}, ops or Ops()
    made.speculative_config = SimpleNamespace(
        enable_adaptive_verification=adaptive, num_speculative_tokens_per_batch_size=schedule
    )
    made.decodes_in_place = made._decodes_in_place()
    made.layer_names = [f"layer of {id(made)}"]
    made.led_groups = CacheGroups(GROUPS, MOST, torch.device("cpu"), made.ops)
    made.groups_commit = Commits()
    made.group_numbers[made.led_groups] = made.led_groups.join(made.layer_names)
    return made


def block_table(group: int, mode: str) -> torch.Tensor:
    """[MOST_ROWS, COLUMNS], no block of which is in another group's."""
    size = MOST_ROWS * COLUMNS[mode]
    blocks = torch.arange(1 + group * size, 1 + (group + 1) * size, dtype=torch.int32)
    return blocks.view(MOST_ROWS, COLUMNS[mode])


def batch(rows: list[int], computed: list[int], mode: str) -> CommonAttentionMetadata:
    """`rows`: tokens of this step per request; 0 is padding."""
    starts = torch.tensor([0, *rows]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([a + b if a else 0 for a, b in zip(rows, computed, strict=True)])
    return CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts.clone(), seq_lens=lengths.int(),
        num_reqs=len(rows), num_actual_tokens=int(starts[-1]), max_query_len=max(rows),
        max_seq_len=int(lengths.max()),
        block_table_tensor=block_table(0, mode)[: len(rows)],
        slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64),
        seq_lens_cpu_upper_bound=lengths.int(), is_prefilling=torch.zeros(len(rows), dtype=torch.bool),
    )  # fmt: skip


def evenly(common: CommonAttentionMetadata, rows: list[int]) -> CommonAttentionMetadata:
    """As adaptive verification leaves it: the host knows the sum of the verify rows alone."""
    common.query_start_loc_cpu = torch.tensor([0, *rows]).cumsum(0).to(torch.int32)
    assert common.query_start_loc_cpu[-1] == common.query_start_loc[-1]
    return common


def build(made: ReplayMetadataBuilder, common: CommonAttentionMetadata, drafts: list[int]):
    accepted = torch.ones(common.num_reqs, dtype=torch.int32)
    return made.build(0, common, accepted, torch.tensor(drafts, dtype=torch.int32))
