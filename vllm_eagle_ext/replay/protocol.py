# SPDX-License-Identifier: Apache-2.0
"""What a platform offers to the layer, the metadata and the commit, and the step they all read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

from vllm_eagle_ext.replay.ops.types import (
    Batch,
    BlockPlaces,
    BlockTables,
    Gating,
    Layer,
    Plan,
    PlanApplier,
    Recurrence,
    StateCache,
)


class Step(NamedTuple):
    """The verify rows of an engine step, as the layers of one KV-cache group see them."""

    batch: Batch  # of the group
    num_rows: int  # N
    num_requests: int  # without padding
    rows_per_request: int  # T
    rows: torch.Tensor | None  # [N] tokens of the whole batch; None: all, in order
    other_rows: torch.Tensor  # the tokens that are not verified
    places: BlockPlaces  # of the verified requests; its rows_of are their places in the whole batch
    other_places: BlockPlaces | None  # of the other requests, in a mixed batch
    num_computed: torch.Tensor | None  # with `align`: as in `Align`
    ones: torch.Tensor  # [R] int32, for vLLM's convolution: conv states, too, are committed ones
    built: dict[int, Batch]  # of all groups that take part, by number; the groups share it


class ReplayLayer(Protocol):
    """What a commit reads of a layer."""

    @property
    def state_cache(self) -> StateCache: ...

    @property
    def gating(self) -> Gating: ...

    @property
    def conv_kernel_size(self) -> int: ...

    @property
    def recurrence(self) -> Recurrence:
        """Return the kernels that verify and commit."""


class Implementation(NamedTuple):
    """One implementation of the operation on a platform."""

    name: str  # a value of the option `replay_kernels`
    recurrence: Recurrence
    exact: bool  # computes what vLLM's own kernel does, bit for bit
    # Widths of keys and values, T, dtypes of rows and states -> why it cannot run them, if so.
    obstacle: Callable[[int, int, int, torch.dtype, torch.dtype], str | None] = lambda *_: None


class ReplayOps(Protocol):
    """Implemented by `on_cpu.CpuOps` and `on_gpu.GpuOps`."""

    @property
    def candidates(self) -> tuple[Implementation, ...]:
        """Return all implementations, the fastest first: a start takes the first that is right."""

    @property
    def scratch_blocks(self) -> int:
        """Return the state blocks per request next to the one that holds its state."""

    @property
    def steps_plain_decodes(self) -> bool:
        """Say whether vLLM's plain decode can step states in this package's state blocks."""

    @property
    def gathers_by_address(self) -> bool:
        """Say whether block tables are read where they stand, whatever tensor they were last seen in."""

    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        """Fill `out` [1 + scratch_blocks, groups, R]: the state block of each request in each group's
        table, then its scratch block; NULL_BLOCK after the last request."""

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        """Prepare the batch once a step, before the layers run."""

    def warm_up(
        self,
        recurrence: Recurrence,
        groups: Any,
        step: Step,
        num_sampled: torch.Tensor,
        apply: PlanApplier,
        plan: Plan,
        layer: Layer,
    ) -> None:
        """Prepare later steps at the first commit, whose step, buffers and first layer these are;
        groups: `CacheGroups`."""

    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        """Convolve x [N, dim] -> [N, dim]; append the inputs to the conv states, which a commit moves
        on."""

    def forward_committed(
        self,
        layer: QwenGatedDeltaNetAttention,
        mixed_qkv: torch.Tensor,  # [tokens, dim]
        b: torch.Tensor,  # [tokens, HV]
        a: torch.Tensor,  # [tokens, HV]
        core_attn_out: torch.Tensor,  # [tokens, HV, DV]
    ) -> None:
        """Run vLLM's own code for prompts and plain decodes."""
