# SPDX-License-Identifier: Apache-2.0
"""What speculation costs a hybrid target in memory and traffic: vLLM's pages beside one page.

`slots`: vLLM keeps a state per token of a draft, 1 + K pages per request. `replay`: one page holds the
state before the draft and, behind it, a record of each of the T = K + 1 rows, from which the accepted
state is computed again. Both follow vLLM's own rules of padding, groups and admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_eagle_ext.memory.geometry import Attention, Recurrent, Target

Way = Literal["per_token", "replay"]
MIB = 2**20
# Smallest kernel block in tokens: FlashAttention and Triton on a GPU, vLLM's default block on a CPU.
GPU_BLOCK, CPU_BLOCK = 16, 128
# Two batches of vLLM's default size for a server; only windowed layers reserve room for them.
_GPU_IN_FLIGHT, _CPU_IN_FLIGHT = 2 * 8192, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    k: int
    max_model_len: int
    prefix_caching: bool = True
    cpu: bool = False
    in_flight_tokens: int | None = None  # None: as vLLM's server by default

    @property
    def block_alignment(self) -> int:
        return CPU_BLOCK if self.cpu else GPU_BLOCK

    @property
    def in_flight(self) -> int:
        return self.in_flight_tokens or (_CPU_IN_FLIGHT if self.cpu else _GPU_IN_FLIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One block of one layer; recurrent and attention layers share its size."""

    raw: int  # bytes that the recurrent layer uses
    padded: int  # bytes that it takes
    block_tokens: int  # tokens of a full-attention layer of the target in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShare:
    """What a request takes of vLLM's pool of blocks on one rank."""

    block_bytes: int  # of one block of the pool
    blocks: int  # a request at max_model_len takes

    def concurrency(self, budget: int) -> float:
        """vLLM's "Maximum concurrency" at a KV budget in bytes."""
        return self.pool(budget) / self.blocks

    def fit(self, budget: int) -> int:
        """Requests of max_model_len at a time; one block of the pool is vLLM's null block."""
        return max(0, self.pool(budget) - 1) // self.blocks

    def running(self, budget: int, max_num_seqs: int) -> int:
        return min(self.fit(budget), max_num_seqs)

    def pool(self, budget: int) -> int:
        return max(0, budget) // self.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint(PoolShare):
    """Bytes on one rank; per request unless said otherwise."""

    way: Way
    pages: int
    page: Page
    state: int  # padded pages of all recurrent layers
    records: int  # part of `state`
    attention: int  # at max_model_len, the draft's included
    moved: int  # of the recurrent state, per step


def pages_per_request(way: Way, setting: Setting) -> int:
    """With prefix caching one page more, for the state at a block's end.

    The CPU's operator works in page memory, so replay needs a private scratch page there.
    """
    boundary = int(setting.prefix_caching)
    if way == "per_token":
        return 1 + setting.k + boundary
    return 1 + boundary + int(setting.cpu)


def records_per_page(recurrent: Recurrent, k: int) -> int:
    """Bytes of the records of one step in one layer."""
    return (k + 1) * recurrent.record_bytes


def page_of(target: Target, way: Way, setting: Setting) -> Page:
    """vLLM grows the attention block until its page holds a state, then pads the state's page to it."""
    recurrent, token_bytes = target.recurrent, target.attention.token_bytes
    raw = recurrent.conv_bytes(setting.k) + recurrent.ssm_bytes
    if way == "replay":
        raw += records_per_page(recurrent, setting.k)
    block_tokens = _round_up(ceil(raw, token_bytes), setting.block_alignment)
    return Page(raw=raw, padded=block_tokens * token_bytes, block_tokens=block_tokens)


def footprint(target: Target, way: Way, setting: Setting, draft: Sequence[Attention] = ()) -> Footprint:
    """Args:
    draft: attention layers that a draft adds to the pool.
    """
    recurrent = target.recurrent
    own = page_of(target, way, setting)
    layers = merged([target.attention, *draft])
    page_bytes = max(own.block_tokens * attention.token_bytes for attention in layers)
    page = Page(raw=own.raw, padded=page_bytes, block_tokens=own.block_tokens)
    pages = pages_per_request(way, setting)
    blocks = [blocks_of(attention, page, setting) for attention in layers]
    counts = [attention.layers for attention in layers]
    wide = group_size([recurrent.layers, *counts])
    return Footprint(
        way=way,
        pages=pages,
        page=page,
        state=recurrent.layers * pages * page_bytes,
        records=recurrent.layers * pages * records_per_page(recurrent, setting.k) * (way == "replay"),
        attention=sum(n * b for n, b in zip(counts, blocks, strict=True)) * page_bytes,
        moved=moved_per_step(recurrent, way, setting.k),
        block_bytes=wide * page_bytes,
        blocks=sum(
            ceil(count, wide) * taken
            for count, taken in zip([recurrent.layers, *counts], [pages, *blocks], strict=True)
        ),
    )


def moved_per_step(recurrent: Recurrent, way: Way, k: int) -> int:
    """Bytes of recurrent state that one request reads and writes in one step, convolution apart.

    Slots: one read, a write per row. Replay: verify and commit read the state, commit writes it, and
    the records are written once and read once.
    """
    state = recurrent.layers * recurrent.ssm_bytes
    if way == "per_token":
        return (1 + k + 1) * state
    return 3 * state + 2 * recurrent.layers * records_per_page(recurrent, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport:
    """What the start-up line says, measured by an engine or computed by a plan."""

    pages: int
    per_token_pages: int
    state: int  # bytes per request
    per_token_state: int
    records: int  # bytes of `state`
    max_model_len: int
    fit: int
    per_token_fit: int

    def line(self) -> str:
        pages = "1 page" if self.pages == 1 else f"{self.pages} pages"
        return (
            f"Recurrent state: replay, {pages} per request (slots: {self.per_token_pages}): "
            f"{mib(self.state)} MiB instead of {mib(self.per_token_state)} MiB per request, "
            f"records {mib(self.records)} MiB of it; "
            f"{self._fits()}."
        )

    def _fits(self) -> str:
        fits = requests_fit(self.fit, self.max_model_len)
        if self.fit == self.per_token_fit:
            same = {0: "with slots neither", 1: "with slots as well"}
            return f"{fits}, {same.get(self.fit, 'as many as with slots')}"
        return (
            f"{fits}{f' instead of {self.per_token_fit}' if self.per_token_fit else ', with slots none'}"
        )


def report(replay: Footprint, per_token: Footprint, *, budget: int, max_model_len: int) -> StateReport:
    return StateReport(
        pages=replay.pages, per_token_pages=per_token.pages,
        state=replay.state, per_token_state=per_token.state, records=replay.records,
        max_model_len=max_model_len, fit=replay.fit(budget), per_token_fit=per_token.fit(budget),
    )  # fmt: skip


def requests_fit(count: int, length: int) -> str:
    if count == 1:
        return f"1 request of {length} tokens fits"
    return f"{count} requests of {length} tokens fit" if count else f"no request of {length} tokens fits"


def mib(size: float) -> str:
    """Whole MiB, or two digits of a small size."""
    value = size / MIB
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def merged(layers: Sequence[Attention]) -> list[Attention]:
    """Layers of one shape and window share vLLM's groups."""
    found: dict[tuple[object, ...], Attention] = {}
    for new in layers:
        key = (new.kv_heads, new.head_dim, new.window, new.element_bytes, new.tp)
        old = found.get(key)
        found[key] = new if old is None else _together(old, new)
    return list(found.values())


def _together(old: Attention, new: Attention) -> Attention:
    return Attention(
        layers=old.layers + new.layers, kv_heads=new.kv_heads, head_dim=new.head_dim,
        window=new.window, element_bytes=new.element_bytes, tp=new.tp,
    )  # fmt: skip


def blocks_of(attention: Attention, page: Page, setting: Setting) -> int:
    """Blocks of one layer that a request takes at max_model_len.

    A layer with a smaller page gets more tokens to a block if that fills the page, else it is padded.
    A windowed layer keeps its window, the tokens in flight, and a block for where the window starts.
    """
    own = page.block_tokens * attention.token_bytes
    times = page.padded // own if page.padded % own == 0 else 1
    tokens = page.block_tokens * times
    if attention.window is None:
        return ceil(setting.max_model_len, tokens)
    kept = min(attention.window - 1 + setting.in_flight, setting.max_model_len)
    return ceil(kept, tokens) + 1


def group_size(counts: Sequence[int]) -> int:
    """Layers of a group, as vLLM's `_get_kv_cache_groups_uniform_page_size` chooses it."""
    fewest, most = min(counts), max(counts)
    return most if most < fewest * 1.5 else fewest


def ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _round_up(value: int, multiple: int) -> int:
    return ceil(value, multiple) * multiple
