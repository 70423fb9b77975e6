"""The controller on recorded step times, with noise and stragglers, and on whatever else may come."""

from __future__ import annotations

import math
import random
from itertools import groupby
from statistics import mean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.draft_length.recorded import BETTER_OFF, PAIRS, Pair, Server
from vllm_eagle_ext.draft_length.controller import DraftLengthController
from vllm_eagle_ext.draft_length.load_buckets import bucket_of
from vllm_eagle_ext.draft_length.probes import SHARE as PROBE_SHARE
from vllm_eagle_ext.draft_length.step_costs import MOST_BUCKETS, RING, CostTable, StepCosts, typical

STEPS, SEEDS = 3000, 24
SETTLED = 1000  # steps
SHARE, WORST = 0.97, 0.90  # of the best fixed length: mean of the seeds, and each of them
FULL = pytest.mark.full
MENU = (0, 1, 2, 4)


def served(pair: Pair, loads, seed: int, first: int = 0) -> float:
    """Serve loads of so many requests, one a step: tokens per second over the best fixed length's.

    Tokens are expected ones of the lengths that were chosen, so that the draws do not count.

    Args:
        first: step that is counted.
    """
    draw = random.Random(seed)
    server = Server(DraftLengthController(pair.menu), draw)
    tokens = best = 0.0
    for step, n in enumerate(loads):
        k = server.step(n, 500 * n, lambda k, n=n: seconds(pair, n, k),
                        lambda k: pair.draw_accepted(k, draw))  # fmt: skip
        if step < first:
            continue
        tokens += n * pair.tokens(k)
        best += seconds(pair, n, k) * max(n * pair.tokens(k) / seconds(pair, n, k) for k in pair.menu)
    return tokens / best


def seconds(pair: Pair, n: int, k: int) -> float:
    """Between recorded numbers of requests, a straight line of logarithms."""
    recorded = sorted(pair.goodput)
    above = next(r for r in recorded if r >= n)
    if above == n:
        return pair.seconds(n, k)
    below = max(r for r in recorded if r < n)
    share = math.log(n / below) / math.log(above / below)
    low, high = math.log(pair.seconds(below, k)), math.log(pair.seconds(above, k))
    return math.exp(low + share * (high - low))


@pytest.mark.parametrize("requests", [1, *(pytest.param(n, marks=FULL) for n in (4, 16)), 32])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_it_comes_near_the_best_fixed_length(pair, requests):
    shares = [served(pair, [requests] * STEPS, seed) for seed in range(SEEDS)]
    print(f"\n{pair.name}, {requests}: {mean(shares):.3f}, worst {min(shares):.3f}")
    assert mean(shares) >= SHARE
    assert min(shares) >= WORST


BETTER_OFF_LOADS = [
    pytest.param(pair, n, id=f"{pair.name}, {n}", marks=() if n == max(pair.goodput) else FULL)
    for pair in BETTER_OFF
    for n in pair.goodput
]


@pytest.mark.parametrize(("pair", "requests"), BETTER_OFF_LOADS)
def test_it_stays_off_where_no_draft_is_the_best(pair, requests):
    """Once each length was tried, and the drafts of the first steps are paid."""
    assert max(pair.menu, key=pair.goodput[requests].__getitem__) == 0
    shares = [served(pair, [requests] * STEPS, seed, SETTLED) for seed in range(SEEDS)]
    print(f"\n{pair.name}, {requests}: {mean(shares):.3f}, worst {min(shares):.3f}")
    assert mean(shares) >= SHARE
    assert min(shares) >= WORST


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_it_follows_a_ramp(pair):
    """1 to 32 requests and back, 80 steps at each number: against the best length of each number."""
    ramp = [n for n in (*range(1, 33), *range(31, 0, -1)) for _ in range(80)]
    shares = [served(pair, ramp, seed) for seed in range(SEEDS)]
    print(f"\n{pair.name}: {mean(shares):.3f}, worst {min(shares):.3f}")
    assert mean(shares) >= SHARE


def world(accepts, cost):
    """A server without noise: `accepts` tokens of each draft, `cost` of each length in seconds."""
    controller = DraftLengthController(MENU)
    previous = None

    def run(steps, n=4, context=4000, accepts=accepts, cost=cost):
        nonlocal previous
        lengths = []
        for _ in range(steps):
            k = controller.next_length(n, context)
            controller.observe_drafts(k, [(k, min(accepts, k))] * n if k else [])
            if k == previous:
                controller.observe_step(n, context, k, cost(k))
            previous = k
            lengths.append(k)
        return lengths

    return controller, run


def linear(k):
    return 0.01 * (1 + 0.3 * k)


def test_it_begins_with_the_longest_and_tries_each_once():
    controller, run = world(4, linear)
    assert run(20) == [4] * 20
    assert set(run(60)) == set(MENU)
    assert controller.in_force == 4


@pytest.mark.parametrize(("accepts", "best"), [(0, 0), (1, 1), (2, 2), (4, 4)])
def test_it_settles(accepts, best):
    controller, run = world(accepts, linear)
    run(120)
    assert controller.in_force == best


def test_it_comes_back_when_the_texts_change():
    controller, run = world(0, linear)
    run(400)
    assert controller.in_force == 0
    run(1500, accepts=4)
    assert controller.in_force == 4
    run(400, accepts=0)
    assert controller.in_force == 0


def test_it_follows_costs_that_change():
    controller, run = world(2, linear)
    run(200)
    assert controller.in_force == 2
    run(3000, cost=lambda k: 0.01 * (1 + 3.0 * k))
    assert controller.in_force == 0


def test_a_machine_that_becomes_slower_changes_nothing():
    controller, run = world(2, linear)
    run(200)
    run(300, cost=lambda k: 3.0 * linear(k))
    assert controller.in_force == 2
    run(300, cost=lambda k: 0.5 * linear(k))
    assert controller.in_force == 2


@pytest.mark.parametrize(("accepts", "slope", "best"), [(4, 0.3, 4), (0, 0.3, 0), (0, 0.6, 0)])
@pytest.mark.parametrize("n", [1, 4, 32])
def test_probes_cost_a_share_that_is_bounded(accepts, slope, best, n):
    """Of the time, also where a step of a probe lasts several of those in force."""

    def cost(k):
        return 0.01 * (1 + slope * k)

    _, run = world(accepts, cost)
    run(400, n=n)
    goodput = {k: (1 + min(accepts, k)) / cost(k) for k in MENU}
    lengths = run(5000, n=n)
    lost = sum(cost(k) * (1 - goodput[k] / goodput[best]) for k in lengths)
    assert 0 < lost <= 1.5 * PROBE_SHARE * sum(map(cost, lengths))
    assert set(lengths) == set(MENU), "none is forgotten"


@pytest.mark.parametrize(("n", "steps"), [(32, 2), (8, 3), (4, 5)])
def test_without_drafts_a_probe_lasts_as_long_as_acceptance_needs(n, steps):
    """Times that are fresh need not be measured again; the first step of a probe is not timed."""
    _, run = world(0, linear)
    run(700, n=n)
    runs = [len(list(group)) for k, group in groupby(run(250, n=n), key=bool) if k]
    assert runs
    assert set(runs) == {steps}


def alone(k):
    return 0.01 * (1 + 0.1 * k)


def crowded(k):
    return 0.03 * (1 + 1.5 * k)


@pytest.mark.parametrize(
    ("first", "second"), [((1, alone, 2), (32, crowded, 0)), ((32, crowded, 0), (1, alone, 2))],
    ids=["company", "alone again"],
)  # fmt: skip
@pytest.mark.parametrize("between", [(), (2, 4, 8, 16)], ids=["at once", "by a ramp"])
def test_every_length_is_soon_timed_under_a_new_load(first, second, between):
    """One request for a while, then 32, and the reverse: what the first says is wrong of the second."""
    controller, run = world(2, alone)
    (n, cost, best), (then, changed, better) = first, second
    run(300, n=n, context=500 * n, cost=cost)
    assert controller.in_force == best
    for more in sorted(between, reverse=n > then):
        run(5, n=more, context=500 * more, cost=cost)
    lengths = run(100, n=then, context=500 * then, cost=changed)
    assert controller.in_force == better
    assert controller.untimed() == 0
    assert set(lengths) == set(MENU)


def test_the_end_of_a_long_draft_is_known_anew_though_short_ones_are_in_force():
    """At first no draft's second token is accepted; later all are, of which short drafts do not tell."""
    controller, run = world(1, linear)
    run(1500)
    assert controller.in_force == 1
    run(500, accepts=4)  # 900 and more, if the end were remembered as it was known last
    assert controller.in_force == 4


def test_what_was_not_timed_under_a_load_is_told():
    controller, run = world(0, linear)
    assert controller.untimed() == len(MENU)
    run(200)
    assert (controller.in_force, controller.untimed()) == (0, 0)
    run(4, n=32, context=16000)
    assert (controller.in_force, controller.untimed()) == (0, len(MENU)), "as another load suggests"


def test_a_bucket_in_which_nothing_was_timed_suggests_nothing():
    """A chain of suggestions would make of one bucket's times those of all."""
    table = CostTable(MENU)
    for k in MENU:
        table.enter((0, 4)).add(k, 1.0 + k, step=1)
    near = table.enter((2, 4))
    assert near.known == pytest.approx(table.enter((3, 4)).known)
    near.known[0] *= 100.0
    table.enter((1, 4)).known[0] *= 100.0
    assert table.enter((4, 4)).known == pytest.approx(table.enter((5, 4)).known)
    assert table.enter((4, 4)).known[0] / table.enter((4, 4)).known[4] == pytest.approx(1 / 5)


def test_what_other_buckets_suggest_fades():
    costs = StepCosts(prior={0: 8.0})
    assert costs.known[0] == 8.0
    for step in range(6):
        costs.add(0, 1.0, step)
    assert costs.known[0] < 8.0**0.15


def test_times_that_new_ones_contradict_are_forgotten():
    def known(before, after, fresh=6):
        costs = StepCosts()
        for step, cost in enumerate([*before, *after]):
            costs.add(4, cost, step)
        costs.overrule(4, fresh)
        return costs.samples(4), costs.known[4]

    assert known([5.0] * 5, [1.0] * 6) == (6, pytest.approx(1.0))
    assert known([1.0] * 5, [5.0] * 6) == (6, pytest.approx(5.0))
    assert known([1.2] * 5, [1.0] * 6)[0] == 11, "noise contradicts nothing"
    assert known([1.0] * 10, [50.0, 1.0, 1.1], fresh=3)[0] == 13, "nor does a straggler"
    assert known([1.0] * 10, [50.0, 50.0], fresh=2)[0] == 12, "nor do two times"
    assert known([], [1.0] * 6)[0] == 6


def test_a_probe_that_another_load_ends_leaves_the_level_of_its_own():
    controller, run = world(4, linear)
    while not controller.is_probing:
        run(1)
    costs = controller._costs
    run(1, n=32, context=16000)
    assert not controller.is_probing
    assert not costs.level.is_fresh, "what was timed before the probe is not compared any more"


def test_each_change_is_told_once():
    controller, run = world(0, linear)
    run(400)
    run(1500, accepts=4)
    changes = controller.take_changes()
    assert [bool(change.after) for change in changes] == [False, True]
    assert changes[1].before == 0
    assert {change.bucket for change in changes} == {bucket_of(4, 4000)}
    assert controller.take_changes() == []


def test_a_length_that_comes_from_another_load_is_told_of_too():
    """Drafting was on here when the load left, and is off since it came back."""
    controller, run = world(4, linear)
    run(200, n=1, context=500)
    run(600, n=32, context=16000, accepts=0)
    (change,) = controller.take_changes()
    assert (change.bucket, change.after) == (bucket_of(32, 16000), 0)
    run(8, n=1, context=500, accepts=0)
    assert controller.in_force == 0
    (change,) = controller.take_changes()
    assert (change.bucket, change.before, change.after) == (bucket_of(1, 500), 4, 0)


def test_a_new_load_starts_from_its_neighbours():
    controller, run = world(0, linear)
    run(200)
    assert controller.in_force == 0
    lengths = run(60, n=8, context=8000)
    assert lengths[:8] == [0] * 8
    assert controller.in_force == 0
    assert 0 < lengths.count(1) < 10, "a neighbour in the menu is timed soon"


def test_a_machine_that_was_slow_at_the_start_makes_no_length_look_slow():
    """Whatever else ran in the first steps, such as warming up, is forgotten as soon as probes tell."""
    controller, run = world(4, linear)
    for slow in (5, 12, 20, 30, 40, 50, 60, 70):
        controller, run = world(4, linear)
        run(slow, cost=lambda k: 5.0 * linear(k))
        run(500)
        assert controller.in_force == 4, slow


def test_a_straggler_does_not_move_it():
    controller, run = world(2, linear)
    run(200)
    before = controller.in_force
    for _ in range(20):
        run(40)
        run(1, cost=lambda k: 10.0)
        assert controller.in_force == before


def test_a_straggler_moves_no_typical_value():
    for count in range(3, RING + 1):
        assert typical([1.0] * (count - 1) + [100.0]) == 1.0
    assert typical([1.0, 3.0]) == 2.0
    assert typical([7.0]) == 7.0


def test_prompts_between_do_not_leave_a_probe_in_force():
    """A probe whose steps are never timed ends."""
    controller, run = world(4, linear)
    run(30)
    for _ in range(200):
        controller.next_length(4, 4000)
        if not controller.is_probing:
            break
    assert not controller.is_probing
    assert {controller.next_length(4, 4000) for _ in range(50)} == {controller.in_force}


@settings(max_examples=60, deadline=None)
@given(
    menu=st.sets(st.integers(0, 16), min_size=2, max_size=6),
    loads=st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 10**9)), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
)
def test_whatever_comes_the_length_is_of_the_menu_and_memory_is_bounded(menu, loads, seed):
    draw, controller = random.Random(seed), DraftLengthController(menu)
    for _ in range(400):
        n, context = draw.choice(loads)
        k = controller.next_length(n, context)
        assert k in menu
        drafted = draw.randrange(20)
        controller.observe_drafts(draw.choice(sorted(menu)), [(drafted, draw.randrange(21))] * 3)
        controller.observe_step(n, context, draw.choice(sorted(menu)), 10 ** draw.uniform(-9, 4))
    assert len(controller._table) <= MOST_BUCKETS
    for costs in controller._table._buckets.values():
        assert all(len(ring) <= RING for ring in costs.rings.values())
        assert set(costs.known) <= menu
    assert all(1.0 <= f.tokens <= 1.0 + f.length for f in controller.figures())


def test_buckets_are_forgotten_last_used_last():
    controller = DraftLengthController(MENU)
    for power in range(40):
        for context in (1, 10**3, 10**6, 10**9):
            controller.next_length(1 << power, context)
    assert len(controller._table) == MOST_BUCKETS


@settings(max_examples=40, deadline=None)
@given(
    costs=st.lists(st.floats(0.2, 5.0), min_size=4, max_size=4),
    accepts=st.integers(0, 4),
    history=st.integers(0, 2**32),
)
@example(costs=[1.0, 1.0, 2.0, 2.0], accepts=4, history=1)  # K=1 in force, which tells of one token
def test_it_is_never_stuck(costs, accepts, history):
    """After any past, it finds a length near the best once the world stands still."""
    draw = random.Random(history)
    controller, run = world(accepts, lambda k: costs[MENU.index(k)])
    run(300, accepts=draw.randrange(5), cost=lambda k: draw.uniform(0.2, 5.0))
    run(3000)
    goodput = {k: (1 + min(accepts, k)) / costs[MENU.index(k)] for k in MENU}
    assert goodput[controller.in_force] >= 0.9 * max(goodput.values())
