"""The controller where most steps hold prompts and the number of requests crosses edges all the time."""

from __future__ import annotations

import pytest

from tests.unit.draft_length.busy import CONTEXT, BusyServer, Load
from vllm_eagle_ext.draft_length.controller import DraftLengthController

MENU = (0, 1, 3, 7)
SETTLED, STEPS = 1000, 3000
SHARE = 0.95  # of the best length's goodput, once settled
LOADS = [
    Load(32, 64, away=1), Load(32, 64, away=3), Load(64, 64, away=1), Load(64, 64, away=3),
    Load(64, 128, away=3), Load(128, 128, away=1), Load(128, 128, away=3), Load(128, 256, away=2),
    Load(4, 128, away=1), Load(16, 128, away=1), Load(32, 128), Load(32, 128, chunks=2),
    Load(32, 128, chunks=4), Load(64, 256, chunks=2), Load(64, 256, chunks=4),
]  # fmt: skip


def compute_bound(k: int, n: int) -> float:
    """Rows cost: with many requests no draft pays."""
    return 10.0 + 0.32 * n * (k + 1) + k


def memory_bound(k: int, n: int) -> float:
    """Rows are nearly free: the longest draft that is accepted pays."""
    return 10.0 + 0.002 * n * (k + 1) + 0.2 * k


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize(("seconds", "accepts"), [(compute_bound, 0.35), (memory_bound, 0.7)])
def test_it_settles_near_the_best(load, seconds, accepts):
    served = BusyServer(MENU, load, seconds, accepts, seed=0).run(STEPS)
    print(f"\n{load}: {served.share(SETTLED):.3f}, at the end K={served.lengths[-1]}")
    assert served.share(SETTLED) >= SHARE


@pytest.mark.parametrize("every", [1, 3, 10])
@pytest.mark.parametrize("edge", [2, 4, 16, 128])
def test_requests_that_cross_an_edge_all_the_time(edge, every):
    controller = DraftLengthController(MENU)
    previous, lengths = None, []
    for step in range(STEPS):
        n = edge - (step // every) % 2
        k = controller.next_length(n, CONTEXT * n)
        controller.observe_drafts(previous or 0, [(previous, 0)] * n if previous else [])
        if k == previous:
            controller.observe_step(n, CONTEXT * n, k, 10.0 + 8.0 * k)
        previous = k
        lengths.append(k)
    assert controller.in_force == 0
    assert lengths[SETTLED:].count(0) >= SHARE * (STEPS - SETTLED)
