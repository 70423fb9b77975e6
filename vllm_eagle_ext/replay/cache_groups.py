# SPDX-License-Identifier: Apache-2.0
"""The KV-cache groups that share a step: their layers, their block tables, and the state blocks of the
step's requests in each of them.

vLLM builds the metadata of one group and asks the builders of the others to put their block table in its
place. Where a platform gathers by address, the first builder gathers for all groups: block tables stay
where they are, and those of the step before tell where. A table that has moved is gathered again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from vllm.config import VllmConfig

from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Align,
    Batch,
    BlockTables,
    CommitKernel,
    CommitPlan,
    HostTables,
    Layer,
    ReplayKernels,
    ReplayOps,
    Step,
)

MULTIPLE = 16  # Triton compiles again for strides that 16 does not divide


class CacheGroups:
    """Gathers a step's state blocks for all groups that share it, in buffers that never move: captured
    graphs read them.

    Args:
        most_groups: there can be no more.
        most_requests: of a step, padding included.
    """

    def __init__(
        self, most_groups: int, most_requests: int, device: torch.device, ops: ReplayOps
    ) -> None:
        columns = 1 + ops.scratch_blocks
        most_requests += -most_requests % MULTIPLE
        size = (columns + 1, most_groups, most_requests)
        blocks = torch.zeros(size, dtype=torch.int32, device=device)
        # [1 + scratch, ..]: state blocks, then scratch. [1, ..]: state blocks of unverified requests.
        self._blocks, self._other_blocks = blocks[:columns], blocks[columns:]
        self.ops, self._most_groups = ops, most_groups
        self._tables: list[torch.Tensor] = []
        self._addresses: torch.Tensor | None = None
        self._views: tuple[torch.Tensor, ...] = ()  # of the groups, for the last number of requests
        self.layer_names: list[list[str]] = []

    def join(self, layer_names: list[str]) -> int:
        """Add a group. Returns its number; the group whose builder comes first has 0."""
        self.layer_names.append(layer_names)
        return len(self.layer_names) - 1

    def step_for_first_group(self, block_table: torch.Tensor, step: Step) -> Step:
        """Gather the state blocks of a step. Returns the step as the layers of group 0 see it."""
        self._store_table(0, block_table)
        self._gather(0, len(self._tables) if self.ops.gathers_by_address else 1, step)
        return self._with_batch(0, step)

    def step_for_group(self, group: int, block_table: torch.Tensor, step: Step) -> Step:
        """Gather the state blocks of another group, where `step_for_first_group` did not. Returns what
        that returned, as the layers of this group see it."""
        if self._store_table(group, block_table) or not self.ops.gathers_by_address:
            self._gather(group, group + 1, step)
        return self._with_batch(group, step)

    def batch(self, step: Step) -> Batch:
        """Return the batch of all groups, without padding."""
        groups, requests = len(self._tables), step.num_requests
        for group in set(range(groups)) - set(step.built):
            # vLLM did not build this one in this step: it gets null blocks.
            self._blocks[0, group].fill_(NULL_BLOCK)
            self._with_batch(group, step)
        blocks = self._blocks[:, :groups, :requests]
        tables: tuple[HostTables, ...] = ()
        if step.batch.host_tables:
            tables = tuple(t for group in range(groups) for t in step.built[group].host_tables)
        scratch = blocks[1] if len(blocks) > 1 else None
        return Batch(blocks[0], step.batch.starts[: requests + 1], scratch, tables)

    def align(self, step: Step) -> Align | None:
        if step.num_computed is None:
            return None
        return Align(self._as_tables(0, len(self._tables)), step.num_computed, step.places.block_size)

    def padding_batch(self, step: Step, indices: torch.Tensor | None, requests: int = 1) -> Batch:
        """Make a batch of requests that are padding, gathered as a step's own. No step is about to read
        the buffer that it stands in."""
        places = step.places._replace(requests=0, indices=indices)
        blocks = self._other_blocks[:, : len(self._tables), :requests]
        self.ops.gather_blocks(self._as_tables(0, len(self._tables)), places, blocks)
        return Batch(blocks[0], blocks.new_zeros(requests + 1))

    def other_blocks(self, group: int, step: Step) -> torch.Tensor:
        """Return the state blocks of the requests that are not verified, [requests] int32."""
        assert step.other_places is not None
        return self._other_blocks[0, group, : step.other_places.requests]

    def _store_table(self, group: int, block_table: torch.Tensor) -> bool:
        """Keep a group's table. Returns whether it stands in another place than in the step before."""
        if group == len(self._tables):
            self._tables.append(block_table)
            self._addresses = None
            return True
        has_moved = self._tables[group].data_ptr() != block_table.data_ptr()
        self._tables[group] = block_table
        if has_moved:
            self._addresses = None
        return has_moved

    def _as_tables(self, start: int, end: int) -> BlockTables:
        if self._addresses is None:
            self._addresses = BlockTables.of(self._tables).addresses
        return BlockTables(tuple(self._tables[start:end]), self._addresses[start:end])

    def _gather(self, start: int, end: int, step: Step) -> None:
        tables, requests = self._as_tables(start, end), len(step.batch.starts) - 1
        self.ops.gather_blocks(tables, step.places, self._blocks[:, start:end, :requests])
        if step.other_places is not None:
            others = self._other_blocks[:, start:end, : step.other_places.requests]
            self.ops.gather_blocks(tables, step.other_places, others)

    def _with_batch(self, group: int, step: Step) -> Step:
        """Return the step with a group's batch, which `step.built` keeps, too."""
        starts = step.batch.starts
        requests = len(starts) - 1
        if not self._views or len(self._views[0]) != requests:
            self._views = self._blocks[:, :, :requests].flatten(0, 1).unbind()
        scratch = self._views[self._most_groups + group] if len(self._blocks) > 1 else None
        batch = self.ops.prepare(Batch(self._views[group], starts, scratch), step.rows_per_request)
        step.built[group] = batch
        return step._replace(batch=batch)


class GroupsCommit:
    """Commits what a step sampled, in all layers of all KV-cache groups. Both runners end up here."""

    def __init__(self, groups: CacheGroups, vllm_config: VllmConfig) -> None:
        self._groups = groups
        # vLLM's register of the layers that run inside compiled graphs, by prefix. A commit reads their
        # `state_cache`, `gating`, `conv_kernel_size` and `replay_kernels`.
        self._layers: dict[str, Any] = vllm_config.compilation_config.static_forward_context
        self._most_requests = vllm_config.scheduler_config.max_num_seqs
        self._bound: tuple[int, ReplayKernels, CommitKernel, CommitPlan] | None = None

    def __call__(self, step: Step, num_sampled: torch.Tensor) -> None:
        """Commit a step; num_sampled [requests of the whole batch] int32."""
        kernels, commit, plan = self._bind(step, num_sampled)
        mine = CommitPlan(*(part[:, : step.num_requests] for part in plan))
        batch, align = self._groups.batch(step), self._groups.align(step)
        kernels.plan(batch, num_sampled, step.places.indices, align, mine)
        commit(batch, mine)

    def _bind(
        self, step: Step, num_sampled: torch.Tensor
    ) -> tuple[ReplayKernels, CommitKernel, CommitPlan]:
        """Prepare the commit of all groups, again when one has joined. The cache, too, exists only after
        the builders."""
        names = self._groups.layer_names
        if self._bound is None or self._bound[0] != len(names):
            grouped = [(self._layers[name], group) for group, each in enumerate(names) for name in each]
            layers = [Layer(layer.state_cache, layer.gating, group) for layer, group in grouped]
            first = grouped[0][0]
            kernels = first.replay_kernels  # a target's layers have the same
            commit = kernels.Commit(layers, first.conv_kernel_size - 1)
            size = (4, len(names), self._most_requests + -self._most_requests % MULTIPLE)
            device = layers[0].gating.A_log.device
            parts = torch.zeros(size, dtype=torch.int32, device=device)
            self._bound = (len(names), kernels, commit, CommitPlan(*parts))
            padding_batch = partial(self._groups.padding_batch, step)
            self._groups.ops.warm_up(
                kernels, padding_batch, self._groups.align(step), num_sampled, commit,
                CommitPlan(*parts), layers[0],
            )  # fmt: skip
        return self._bound[1:]
