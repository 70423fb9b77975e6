# SPDX-License-Identifier: Apache-2.0
"""Defines what the implementations take, and what a platform offers. Needs only torch and numpy.

Letters: N rows of all requests, R requests, T rows of one request at most (1 + K drafts), H key heads,
HV value heads, DK and DV their widths, P state blocks, W width of the convolution, G cache groups.

A cache group is a set of layers whose state blocks vLLM hands out together. A batch of one group has
`state_blocks` [R]; one of several has [G, R], where rows, starts and sampled counts are those of all.
`verify` takes the batch of a layer's own group, `plan` and `Commit` that of all groups.

A step verifies up to T rows of each request: the anchor, which is the last sampled token, and the drafts
after it. Sampling keeps some of the drafts and adds one token of the target's own. From this follows
what a commit does: **n sampled tokens commit n rows, the anchor and n - 1 accepted drafts**. The last
sampled token has no row yet, it is the next step's anchor. The number is called `rows_to_commit`.
vLLM's metrics count accepted drafts, without the anchor: n - 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

NULL_BLOCK = 0  # block 0 of vLLM's cache belongs to no request: one there is padding, and not touched


class Rows(NamedTuple):
    """A step's rows after the convolution, requests one after the other, in the model's dtype."""

    query: torch.Tensor  # [N, H, DK], not yet normalised
    key: torch.Tensor  # [N, H, DK], not yet normalised
    value: torch.Tensor  # [N, HV, DV]
    a: torch.Tensor  # [N, HV], decay before softplus
    b: torch.Tensor  # [N, HV], beta before the sigmoid


class Gating(NamedTuple):
    """Parameters of a layer's gates."""

    A_log: torch.Tensor  # [HV], fp32
    dt_bias: torch.Tensor  # [HV]


class StateCache(NamedTuple):
    """One layer's part of the KV cache, by state block: views of vLLM's tensor, block stride free."""

    # The last inputs of the convolution, oldest first. `convolve` drops the first, adds a step's: after
    # n rows the W - 1 newest begin in column n - 1.
    conv: torch.Tensor  # [P, dim, W - 1 + T - 1]
    state: torch.Tensor  # [P, HV, DV, DK], fp32 or the model's dtype: the committed state
    records: torch.Tensor  # [P, T, record_width], the model's dtype: per row key, value, a, b


class HostTables(NamedTuple):
    """A batch as vLLM's C++ kernel wants it; R counts the requests that are not padding."""

    active: np.ndarray  # [R]: their places in the batch
    state_blocks: np.ndarray  # [R]
    request: np.ndarray  # [N]: of each row, its request's place in `active`
    offset: np.ndarray  # [N]: place of each row in its request
    row_places: tuple[torch.Tensor, torch.Tensor]  # [N] int64 each: block and place of each record
    starts: torch.Tensor  # [R + 1] int32
    columns: torch.Tensor  # [R, T + 1] int32: scratch, .., scratch, state block
    from_last: torch.Tensor  # [R] int32: T + 1, as num_accepted_tokens n loads column n - 1
    conv_blocks: torch.Tensor  # [R] int32: `state_blocks` for vLLM's convolution
    ones: torch.Tensor  # [R] int32, such an n: conv states start at column 0


class Batch(NamedTuple):
    """Where the requests of a verify step stand. Rows may be ragged: 1 to T per request."""

    state_blocks: torch.Tensor  # [R] or [G, R] int32: of each request, NULL_BLOCK for padding
    starts: torch.Tensor  # [R + 1] int32: first row of each request, then N
    scratch: torch.Tensor | None = None  # as state_blocks: private blocks, only `cpu` needs them
    host_tables: tuple[HostTables, ...] = ()  # [G]: the same for the C++ kernel, made by `cpu.prepare`

    @property
    def groups(self) -> int:
        return 1 if self.state_blocks.ndim == 1 else len(self.state_blocks)

    def first(self, requests: int) -> Batch:
        """Drop the padding after the first requests."""
        if self.state_blocks.shape[-1] == requests:
            return self
        scratch = None if self.scratch is None else self.scratch[..., :requests]
        blocks, starts = self.state_blocks[..., :requests], self.starts[: requests + 1]
        return Batch(blocks, starts, scratch, self.host_tables)

    def of_group(self, group: int) -> Batch:
        """Return the batch of one cache group."""
        if self.state_blocks.ndim == 1:
            return self
        scratch = None if self.scratch is None else self.scratch[group]
        tables = self.host_tables[group : group + 1]
        return Batch(self.state_blocks[group], self.starts, scratch, tables)


class CommitPlan(NamedTuple):
    """What a commit writes, as `Batch.state_blocks` [R] or [G, R] int32 each: the state after
    `rows_to_commit` rows goes to block `final`, that after `block_end_lengths` rows to block `block_end`
    (NULL_BLOCK: none)."""

    rows_to_commit: torch.Tensor  # 0: nothing is committed
    final: torch.Tensor
    block_end: torch.Tensor  # with prefix caching: the block whose last token the step passes
    block_end_lengths: torch.Tensor

    def of_group(self, group: int) -> CommitPlan:
        return self if self.final.ndim == 1 else CommitPlan(*(part[group] for part in self))


class BlockTables(NamedTuple):
    """The block tables of the cache groups, which must not move."""

    tensors: tuple[torch.Tensor, ...]  # [G] of [requests of the whole batch, blocks] int32 each
    addresses: torch.Tensor  # [G] int64: where they begin, for kernels that read all of them

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> BlockTables:
        """Collect the tables and their addresses.

        Raises:
            ValueError: the tables differ in the number of blocks or in the distance of their rows.
        """
        if len({(table.shape[1], table.stride()) for table in tensors}) > 1:
            raise ValueError("the block tables of a commit differ in width or stride")
        places = torch.tensor([table.data_ptr() for table in tensors], dtype=torch.int64)
        return cls(tuple(tensors), places.to(tensors[0].device, non_blocking=True))


class BlockPlaces(NamedTuple):
    """Where the block tables hold the state blocks of some of a batch's requests.

    With `seq_lens` it is the last token's column, else the first.
    """

    requests: int
    indices: torch.Tensor | None  # [requests] int32: rows of the tables; None: the first ones
    seq_lens: torch.Tensor | None  # [requests of the whole batch] int32, with `align`
    block_size: int  # tokens


class Align(NamedTuple):
    """Prefix caching: one state block for each so many tokens, by position (vLLM's mode `align`)."""

    tables: BlockTables
    num_computed: torch.Tensor  # [requests of the whole batch] int32: tokens before this step
    block_size: int

    @classmethod
    def of(cls, tables: Sequence[torch.Tensor], num_computed: torch.Tensor, size: int) -> Align:
        return cls(BlockTables.of(tables), num_computed, size)


class Layer(NamedTuple):
    """What a commit knows of a layer."""

    cache: StateCache
    gating: Gating
    group: int  # its cache group: a row of `Batch.state_blocks` and of the plan's parts


class Step(NamedTuple):
    """The verify rows of an engine step, as the layers of one KV-cache group see them."""

    batch: Batch  # of the group
    num_rows: int  # N; unmixed, with a full graph's padding
    num_requests: int  # without padding
    rows_per_request: int  # T
    rows: torch.Tensor | None  # [N] ints: their places in the whole batch; None: all, in order
    other_rows: torch.Tensor  # ints: the places of those that are not verified
    places: BlockPlaces  # of the verified requests; its indices are their places in the whole batch
    other_places: BlockPlaces | None  # of the other requests, in a mixed batch
    num_computed: torch.Tensor | None  # with `align`: as in `Align`
    ones: torch.Tensor  # [R] int32, for vLLM's convolution: conv states, too, are committed ones
    built: dict[int, Batch]  # of all groups that take part, by number; the groups share it


# Makes a batch of requests that are padding: `CacheGroups.padding_batch`, but for its step.
PaddingBatch = Callable[..., Batch]


class CommitKernel(Protocol):
    """Writes what a plan says, in all layers."""

    def __init__(self, layers: Sequence[Layer], history: int) -> None:
        """Keep the layers; `history`: W - 1, the inputs that the convolution looks back on."""

    def __call__(self, batch: Batch, plan: CommitPlan) -> None:
        """Write per request state and conv state after `rows_to_commit` rows, and at the block
        boundary."""


class ReplayKernels(Protocol):
    """What the modules `reference`, `cpu`, `triton` and `triton_chunked` offer."""

    @property
    def Commit(self) -> type[CommitKernel]: ...

    def verify(
        self, rows: Rows, gating: Gating, cache: StateCache, batch: Batch, out: torch.Tensor
    ) -> None:
        """Write the outputs of all rows from the committed states to `out` [N, HV, DV]; record the
        rows."""

    def plan(
        self,
        batch: Batch,
        num_sampled: torch.Tensor,  # [requests of the whole batch] int32
        indices: torch.Tensor | None,  # [R] int32: where a request stands there; None: in its place
        align: Align | None,
        out: CommitPlan,
    ) -> None:
        """Turn the sampled counts into what `Commit` writes: rows_to_commit = num_sampled, at least 1
        (V2 verifies a prompt's chunk of one token, which samples nothing), at most the request's rows.

        A step passes one block boundary at most: block_size >= T.
        """


class Implementation(NamedTuple):
    """One implementation of the operation on a platform."""

    name: str  # a value of the option `replay_kernels`
    kernels: ReplayKernels
    exact: bool  # computes what vLLM's own kernel does, bit for bit
    # Widths of keys and values, T, dtypes of rows and states -> why it cannot run them, if so.
    unsupported_reason: Callable[[int, int, int, torch.dtype, torch.dtype], str | None] = lambda *_: None


class ReplayOps(ABC):
    """What a platform offers to layer, metadata and commit: `on_cpu.CpuOps`, `on_gpu.GpuOps`."""

    candidates: tuple[Implementation, ...]  # the fastest first: a start takes the first that is right
    scratch_blocks: int  # per request, next to the block that holds its state
    gathers_by_address: bool  # block tables are read where they stand, whatever tensor they were seen in

    @property
    def can_decode_in_place(self) -> bool:
        """Say whether vLLM's plain decode can step states in this package's state blocks."""
        return True

    @abstractmethod
    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        """Fill `out` [1 or 1 + scratch_blocks, groups, R]: the state block of each request in each
        group's table, then its scratch block; NULL_BLOCK after the last request."""

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        """Prepare the batch once a step, before the layers run."""
        return batch

    def warm_up(  # noqa: B027 - a CPU compiles nothing
        self,
        kernels: ReplayKernels,
        padding_batch: PaddingBatch,
        align: Align | None,
        num_sampled: torch.Tensor,
        commit: CommitKernel,
        plan: CommitPlan,
        layer: Layer,
    ) -> None:
        """Prepare later steps at the first commit, whose buffers and first layer these are."""

    @abstractmethod
    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        """Convolve x [N, dim] -> [N, dim]; append the inputs to the conv states, which a commit moves
        on."""

    @abstractmethod
    def forward_committed(self, layer: QwenGatedDeltaNetAttention, *tensors: torch.Tensor) -> None:
        """Run vLLM's own code for prompts and plain decodes, with what `_forward_core` takes."""
