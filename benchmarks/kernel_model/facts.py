# SPDX-License-Identifier: Apache-2.0
"""What machine code does not say of a kernel: trip counts, bytes, and how it is launched.

A kernel that is new to the model gets a row in `FACTS`, by its name, or by scheme and name where several
modules have one of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.kernel_model.case import WIDTH, Case
from benchmarks.kernel_model.sass import Loop, Trips

# Rows that a step commits, by its rows T: anchor and accepted drafts.
COMMITTED = {4: 3, 8: 4, 16: 5}
# Rows for which kernels are compiled whose code knows of T only as a limit.
ANY_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of one kernel.

    launched: once per layer, or once per step for all layers, or once per step whatever their number.
    trips: as `Flow.weights` takes them, for a step of a case.
    moved: bytes read from and written to memory per request and layer, each once.
    cached: bytes per request and layer that come from the second-level cache besides.
    conditional: how often a block runs that a loop's iterations may skip.
    rows_in_code: T is a size of a tile, and not only a limit.
    per_head: its CTAs are a number for each request and value head.
    """

    launched: Literal["per layer", "all layers", "once"]
    trips: Callable[[Case], Trips]
    moved: Callable[[Case], int]
    cached: Callable[[Case], int] = lambda case: 0
    conditional: float = 1.0
    rows_in_code: bool = False
    per_head: bool = True


def _rows(case: Case) -> float:
    return case.rows


def committed(case: Case) -> int:
    return COMMITTED[case.rows]


def _inputs_and_outputs(case: Case) -> int:
    """Query, key, value and the gates' inputs are read, outputs written, in bf16."""
    per_row = case.channels + case.value_heads * (2 + WIDTH)
    return 2 * case.rows * per_row


def _verified(case: Case) -> int:
    return case.state_bytes + _inputs_and_outputs(case) + case.rows * case.record_bytes


def _committed(case: Case) -> int:
    return 2 * case.state_bytes + committed(case) * case.record_bytes


def _per_token(case: Case) -> int:
    return (1 + case.rows) * case.state_bytes + _inputs_and_outputs(case)


def _fused(case: Case) -> int:
    gate = 2 * case.rows * case.value_heads * WIDTH
    return _per_token(case) + gate


def _rows_in_token_loops(case: Case) -> Callable[[Loop], float]:
    """vLLM's fused kernel has a loop over rows for each part of the state; the others copy."""
    return lambda loop: case.rows if loop.counts()["shuffle"] else 1


STATE_COLUMNS = 32  # that the chunked kernels have in registers at a time


def _in_tiles(case: Case) -> Callable[[Loop], float]:
    """The chunked kernels pass over a state in tiles; the loop around a pass of the commit runs once."""
    return lambda loop: 1 if loop.inner else WIDTH / STATE_COLUMNS


FUSED = "gdn_decode_post_conv_mtp_kernel"
FACTS = {
    "_verify": Facts(launched="per layer", trips=_rows, moved=_verified),
    "_apply_states": Facts(
        launched="all layers", trips=committed, moved=_committed, conditional=0
    ),  # the state at a block boundary is written in one step of many
    "chunked _verify": Facts(launched="per layer", trips=_in_tiles, moved=_verified),
    "chunked _apply_states": Facts(
        launched="all layers",
        trips=_in_tiles,
        moved=_committed,
        cached=lambda case: case.state_bytes,  # read a second time to be written
    ),
    "_move_conv_states": Facts(
        launched="all layers",
        trips=lambda case: 1,
        moved=lambda case: 2 * 3 * 2 * case.channels,
        per_head=False,
    ),
    "_gather_blocks": Facts(launched="once", trips=lambda case: 1, moved=lambda case: 8, per_head=False),
    "_plan": Facts(launched="once", trips=lambda case: 1, moved=lambda case: 64, per_head=False),
    "fused_sigmoid_gating_delta_rule_update_kernel": Facts(
        launched="per layer", trips=_rows, moved=_per_token
    ),
    FUSED: Facts(launched="per layer", trips=_rows_in_token_loops, moved=_fused),
}


def facts_of(scheme: str, kernel: str) -> Facts:
    """Raises KeyError for a kernel that has no row."""
    found = FACTS.get(f"{scheme} {kernel}") or FACTS.get(kernel)
    if found is None:
        raise KeyError(f"kernel {kernel} of {scheme}: add its row to benchmarks/kernel_model/facts.py")
    return found


def floor(case: Case) -> int:
    """Bytes that no scheme with one state can do without: the state read and written once."""
    return 2 * case.state_bytes


def eager_floor(case: Case) -> int:
    """With a commit of its own, which reads the state again."""
    return 3 * case.state_bytes
