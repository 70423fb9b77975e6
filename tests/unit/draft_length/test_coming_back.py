"""How soon drafting is back after K = 0, which no draft tells of."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from tests.unit.draft_length.recorded import PAIRS, Pair, Server
from vllm_eagle_ext.draft_length.controller import DraftLengthController

SEEDS, MOST = 24, 1500
SOON = 220  # steps, mean of the seeds; without ageing, or without folding a probe's drafts, 250 to 660
OFF_FOR = 1500  # steps


def steps_until_back(pair: Pair, requests: tuple[int, int], costs: tuple[float, float],
                     accepted: tuple[float, float], seed: int) -> int:  # fmt: skip
    """Serve a load at which no draft pays until drafting is off, then another.

    Args:
        requests: before and after.
        costs: what a step's drafts cost against the recorded step, before and after.
        accepted: share of the recorded acceptance, before and after.

    Returns:
        Steps of the second load until a length other than 0 is in force.
    """
    draw = random.Random(seed)
    server = Server(DraftLengthController(pair.menu), draw)

    def step(now: int) -> None:
        n = requests[now]
        plain = pair.seconds(n, 0)
        server.step(
            n, 500 * n,
            lambda k: plain + costs[now] * (pair.seconds(n, k) - plain),
            lambda k: pair.draw_accepted(k, draw) if draw.random() < accepted[now] else 0,
        )  # fmt: skip

    for _ in range(OFF_FOR):
        step(0)
    for _ in range(OFF_FOR):  # where another length is as good but for noise
        if server.controller.in_force == 0:
            break
        step(0)
    assert server.controller.in_force == 0
    for count in range(MOST):
        if server.controller.in_force:
            return count
        step(1)
    return MOST


CASES = {
    "texts, 4 requests": ((4, 4), (1.5, 1.5), (0.02, 1.0)),
    "texts, 32 requests": ((32, 32), (1.5, 1.5), (0.02, 1.0)),
    "load": ((32, 4), (6.0, 1.0), (1.0, 1.0)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_drafting_is_soon_back(pair, case):
    counts = [steps_until_back(pair, *CASES[case], seed) for seed in range(SEEDS)]
    print(f"\n{pair.name}, {case}: {mean(counts):.0f} steps, at most {max(counts)}")
    assert mean(counts) <= SOON
