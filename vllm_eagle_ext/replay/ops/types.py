# SPDX-License-Identifier: Apache-2.0
"""What the three implementations take. Needs torch alone.

Letters: N rows of all requests, R requests, T rows of one request at most (1 + K drafts), H key heads,
HV value heads, DK and DV their widths, P pages, W width of the convolution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

NULL_PAGE = 0  # vLLM's null block: a request that stands there is padding and is left alone


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


class Pages(NamedTuple):
    """One layer's part of the state pages: views of vLLM's cache, page stride free."""

    conv: torch.Tensor  # [P, dim, W - 1 + T - 1]: the last inputs of the convolution, oldest first
    state: torch.Tensor  # [P, HV, DV, DK], fp32 or the model's dtype: the checkpoint state
    records: torch.Tensor  # [P, T, record_width], the model's dtype: per row key, value, a, b


class Batch(NamedTuple):
    """Where the requests of a verify step stand. Rows may be ragged: 1 to T per request."""

    slots: torch.Tensor  # [R] int32: page of each request, NULL_PAGE for padding
    starts: torch.Tensor  # [R + 1] int32: first row of each request, then N
    scratch: torch.Tensor | None = None  # [R] int32: a private page per request, `cpu` alone needs it


class Plan(NamedTuple):
    """What a commit writes: the state after `lengths` rows goes to page `final`, that after
    `boundary_lengths` rows to page `boundary` (NULL_PAGE: none)."""

    lengths: torch.Tensor  # [R] int32, 0: nothing is committed
    final: torch.Tensor  # [R] int32
    boundary: torch.Tensor  # [R] int32
    boundary_lengths: torch.Tensor  # [R] int32


class Align(NamedTuple):
    """Prefix caching: a page per block of tokens, by position."""

    block_table: torch.Tensor  # [requests of the whole batch, blocks] int32
    num_computed: torch.Tensor  # [requests of the whole batch] int32: tokens before this step
    block_size: int
