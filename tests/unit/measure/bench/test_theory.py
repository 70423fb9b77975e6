"""The theory of a step against numbers worked out by hand."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.measure.bench.results import Split, Traffic
from vllm_eagle_ext.measure.bench.theory import (
    best_k,
    distinct_experts,
    expected_acceptance_length,
    predicted_speedups,
    step_bytes,
    theory,
)

GB = 10**9


def traffic(**changes: object) -> Traffic:
    """16 GB of weights, a draft of 0.8 GB, 128 KiB and 4 KiB of cache per token, 4 TB/s."""
    found = {
        "target_weights": 16 * GB, "target_experts": 0, "experts": 0, "experts_per_token": 0,
        "draft_weights": 800_000_000, "draft_fusion": 0,
        "target_kv_per_token": 131072, "draft_kv_per_token": 4096,
        "state_per_request": 0, "state_blocks": 0, "parallel_drafts": False, "copy_bytes_per_s": 4e12,
    }  # fmt: skip
    return Traffic.model_validate(found | changes)


def split(target_s: float = 0.005, draft_s: float = 0.001) -> Split:
    return Split(concurrency=1, steps=10, target_s=target_s, draft_s=draft_s)


def iid(rate: float, k: int) -> list[float]:
    return [rate**position for position in range(1, k + 1)]


@pytest.mark.parametrize(
    ("rate", "k", "length"),
    [(0.6, 3, 2.18), (0.8, 3, 2.95), (0.8, 7, 4.16), (0.9, 7, 5.70), (0.7, 15, 3.32), (0.9, 15, 8.15)],
)
def test_the_length_of_an_even_acceptance_is_the_closed_form(rate, k, length):
    found = expected_acceptance_length(iid(rate, k), k)
    assert found == pytest.approx(length, abs=0.006)
    assert found == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


def test_tau_takes_the_first_positions_alone():
    assert expected_acceptance_length([0.7, 0.5, 0.3], 2) == pytest.approx(2.2)
    assert expected_acceptance_length([0.7, 0.5, 0.3], 0) == 1


@pytest.mark.parametrize(
    ("experts", "per_token", "times"),
    [
        (128, 4, {4: 3.8, 8: 7.2, 16: 12.7}),  # gpt-oss-120b
        (128, 8, {4: 3.6, 8: 6.5, 16: 10.3}),  # 30B-A3B
        (32, 4, {4: 3.3, 8: 5.3, 16: 7.1}),  # gpt-oss-20b
    ],
)
def test_distinct_experts_against_one_token(experts, per_token, times):
    one = distinct_experts(experts, per_token, 1)
    assert one == pytest.approx(per_token)
    for tokens, expected in times.items():
        assert distinct_experts(experts, per_token, tokens) / one == pytest.approx(expected, abs=0.05)


def test_a_step_without_a_draft_reads_nothing_of_one():
    assert step_bytes(traffic(), context_tokens=1000, concurrency=4, k=0) == {
        "target weights": 16 * GB,
        "target KV": 1000 * 4 * 131072,
    }


def test_a_dense_step_reads_the_target_once_and_the_draft_k_times():
    assert step_bytes(traffic(), context_tokens=1000, concurrency=2, k=5) == {
        "target weights": 16 * GB,
        "target KV": 1000 * 2 * 131072,
        "draft weights": 5 * 800_000_000,
        "draft KV": 1000 * 2 * 4096 * 5,
    }


def test_drafts_in_parallel_are_one_pass():
    found = step_bytes(traffic(parallel_drafts=True), context_tokens=10, concurrency=1, k=15)
    assert found["draft weights"] == 800_000_000
    assert found["draft KV"] == 10 * 4096


@pytest.mark.parametrize(
    ("blocks", "k", "states"),
    [
        (1, 0, 2),  # no draft: read and written
        (16, 0, 2),
        (1, 15, 2),  # replay: one block, the recorded inputs within it
        (2, 15, 3),  # replay on a CPU, whose kernel has a block to work in
        (16, 15, 17),  # per_token: read once, written for each of the 16 rows
        (2, 1, 3),
    ],
)
def test_recurrent_state_is_read_once_and_written_to_every_block(blocks, k, states):
    hybrid = traffic(state_per_request=1000, state_blocks=blocks)
    found = step_bytes(hybrid, context_tokens=1, concurrency=3, k=k)
    assert found["recurrent state"] == 3 * 1000 * states


def test_experts_are_read_by_how_many_the_rows_reach():
    moe = traffic(target_experts=128 * 1000, experts=128, experts_per_token=4)
    plain = step_bytes(moe, context_tokens=1, concurrency=1, k=0)["target experts"]
    verify = step_bytes(moe, context_tokens=1, concurrency=1, k=3)["target experts"]
    batch = step_bytes(moe, context_tokens=1, concurrency=4, k=3)["target experts"]
    assert plain == pytest.approx(4 * 1000)
    assert verify / plain == pytest.approx(3.8, abs=0.05)
    assert batch / plain == pytest.approx(12.7, abs=0.05)


def test_bounds_of_a_dense_target():
    """K=4 of 0.8 GB: 16 and 19.2 GB at 4 TB/s are 4 and 4.8 ms."""
    found = theory(
        plain_step_s=0.005, split=split(0.006, 0.002), acceptance_length=3.0, context_tokens=0,
        concurrency=1, k=4, traffic=traffic(),
    )  # fmt: skip
    assert found.expected_speedup == pytest.approx(3.0 * 5 / 8)
    assert found.bound_step_s == pytest.approx(0.0048)
    assert found.bound_speedup == pytest.approx(3.0 * 4 / 4.8)
    assert found.of_bound == pytest.approx(0.6)
    assert found.limit == "target weights"


@pytest.mark.parametrize(
    ("changes", "setting", "limit"),
    [
        ({}, {"context_tokens": 100_000, "concurrency": 16, "k": 3}, "target KV"),
        ({"draft_weights": 5 * GB}, {"context_tokens": 1, "concurrency": 1, "k": 7}, "draft weights"),
        (
            {"state_per_request": 150 * 2**20, "state_blocks": 17},
            {"context_tokens": 1, "concurrency": 16, "k": 16},
            "recurrent state",
        ),
        (
            {"target_experts": 100 * GB, "experts": 128, "experts_per_token": 8},
            {"context_tokens": 1, "concurrency": 4, "k": 7},
            "target experts",
        ),
    ],
)
def test_the_limit_is_the_largest_share(changes, setting, limit):
    found = theory(
        plain_step_s=1, split=split(), acceptance_length=2, traffic=traffic(**changes), **setting
    )
    assert found.limit == limit


def test_a_plain_step_moves_what_its_own_engine_holds():
    """States of 1 GB, of 1.5 with replay's records: plain 16 + 2 GB, a step of K=1 16 + 3 + 0.8 GB."""
    own = traffic(state_per_request=3 * GB // 2, state_blocks=1)
    plain = traffic(state_per_request=GB, state_blocks=1, copy_bytes_per_s=1e12)
    given = {
        "plain_step_s": 1,
        "split": split(),
        "acceptance_length": 2,
        "context_tokens": 0,
        "concurrency": 1,
        "k": 1,
    }
    found = theory(traffic=own, plain=plain, **given)
    assert found.bound_speedup == pytest.approx(2 * 18 / 19.8)
    assert found.bound_step_s == pytest.approx(19.8 / 4000)
    assert theory(traffic=own, **given).bound_speedup == pytest.approx(2 * 19 / 19.8)


def test_a_mixture_of_experts_may_have_no_speedup_to_win():
    """gpt-oss-120b with 4 rows: 3.8 times the experts of one eat an acceptance length of 2.4."""
    moe = traffic(
        target_weights=2 * GB, target_experts=60 * GB, experts=128, experts_per_token=4, draft_weights=GB
    )
    found = theory(
        plain_step_s=1,
        split=split(),
        acceptance_length=2.4,
        traffic=moe,
        context_tokens=1,
        concurrency=1,
        k=3,
    )
    assert found.bound_speedup < 1
    dense = traffic(target_weights=4 * GB, draft_weights=GB // 10)
    found = theory(
        plain_step_s=1,
        split=split(),
        acceptance_length=2.4,
        traffic=dense,
        context_tokens=1,
        concurrency=1,
        k=3,
    )
    assert found.bound_speedup > 2


def test_the_fusion_of_states_is_read_once_per_step():
    found = step_bytes(traffic(draft_fusion=GB), context_tokens=1, concurrency=1, k=4)
    assert found["draft weights"] == 4 * 800_000_000 + GB
    assert "draft weights" not in step_bytes(
        traffic(draft_fusion=GB), context_tokens=1, concurrency=1, k=0
    )


def test_a_token_more_pays_while_its_acceptance_outweighs_its_cost():
    """A pass of 0.1, a token of 0.05 of a plain step: one more pays while .8^i * (d+v) > .15 L."""
    rates = iid(0.8, 7)
    cost = split(target_s=1.35, draft_s=0.7)
    found = predicted_speedups(rates, plain_step_s=1, split=cost, k=7, parallel_drafts=False)
    assert found[1] == pytest.approx(1.8 / 1.15)
    assert found[7] == pytest.approx(expected_acceptance_length(rates, 7) / 2.05)
    assert best_k(found) == 5  # 3.36 / 1.60, 3.69 / 1.75, 3.95 / 1.90
    for k in range(1, 7):
        pays = rates[k] > expected_acceptance_length(rates, k) * 0.15 / (1 + 0.15 * k)
        assert (found[k + 1] > found[k]) == pays


def test_drafts_in_parallel_make_every_slot_cheap():
    rates = iid(0.8, 7)
    cost = split(target_s=1.0, draft_s=0.3)
    found = predicted_speedups(rates, plain_step_s=1, split=cost, k=7, parallel_drafts=True)
    assert found[1] == pytest.approx(1.8 / 1.3)
    assert best_k(found) == 7


def test_no_draft_is_the_best_where_none_is_faster():
    cost = split(target_s=3.0, draft_s=0.5)
    found = predicted_speedups([0.2, 0.1], plain_step_s=1, split=cost, k=2, parallel_drafts=False)
    assert best_k(found) == 0
    assert best_k({}) == 0
