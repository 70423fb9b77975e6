"""vLLM's `num_speculative_tokens_per_batch_size`, 0 among its values: K changes while requests live.

Beside the hybrid target with replay the DFlash pair, V1 and V2, and an EAGLE-3 draft, V1; beside the
dense one EAGLE-3, V2 (on V1: test_scheduling.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.batches import Batch, Engine, drafts_of, eagle3, run_engines
from tests.support.breakage import HOLE
from tests.support.hybrid import DFLASH_AUX_LAYERS, TARGET, dflash, eagle3_made_to_fit
from tests.support.near_ties import NEAR_TIE_GAP, assert_only_near_ties
from tests.support.schedules import (
    assert_drafts_follow_the_schedule,
    common_lengths,
    drafts_by_width,
    following,
    phases,
)
from vllm_eagle_ext.measure.reference.published import accepted_length, residual_stream

pytestmark = [pytest.mark.e2e, pytest.mark.long]

K, EAGLE_K = 7, 4
JOINS = [0, 0, 6, 8, 10, 12, 40, 41, 42, 70, 90, 91]
LENGTHS = [60, 90, 30, 34, 50, 40, 44, 40, 36, 60, 70, 60]
REPLAY = {"hybrid_state": "replay"}


SCHEDULE = [[1, 2, K], [3, 3, 2], [4, 4, 1], [5, 256, 0]]
EAGLE_SCHEDULE = [[1, 2, EAGLE_K], [3, 3, 2], [4, 4, 1], [5, 256, 0]]


@pytest.fixture(scope="module")
def v1(prompts, tmp_path_factory):
    texts = [prompt[: 40 + 3 * i] for i, prompt in enumerate(prompts[: len(JOINS)])]
    waves = [Batch("waves", texts, max_tokens=LENGTHS, joins=JOINS, logprobs=5)]
    chain = eagle3_made_to_fit(tmp_path_factory.mktemp("draft"), EAGLE_K)
    engines = {
        "plain": None, "fixed": dflash(K), "schedule": following(dflash(K), SCHEDULE),
        "chain fixed": chain, "chain schedule": following(chain, EAGLE_SCHEDULE),
        HOLE: following(chain, EAGLE_SCHEDULE),
    }  # fmt: skip
    runs = run_engines([
        Engine(
            name, waves, draft, options=REPLAY if draft else {}, target=TARGET,
            broken=HOLE if name == HOLE else None,
        )
        for name, draft in engines.items()
    ])  # fmt: skip
    return {name: result["waves"] for name, result in runs.items()}


class TestDFlashWithReplay:
    def test_drafts_follow_the_schedule(self, v1):
        assert phases(v1["schedule"]) == [7, 2, 1, 0, 1, 2, 7, 2, 7]
        assert_drafts_follow_the_schedule(v1["schedule"], SCHEDULE)

    def test_texts_are_those_without_a_draft(self, v1):
        plain = v1["plain"]
        assert_only_near_ties(plain, v1["schedule"]["tokens"], "schedule")

    def test_drafts_after_steps_without_are_those_of_a_fixed_k(self, v1):
        """The draft's cache has no hole. A narrower block has fewer masks on V1, and may differ."""
        widths = drafts_by_width(v1["schedule"], v1["fixed"])
        print(f"\nwidth: drafts, differing from those of K={K}: {widths}")
        assert widths[K][0] >= 40
        assert widths[K][1] <= 1  # a near-tie of the draft's, whose batches have other shapes
        assert widths[0][0] >= 100


def test_a_chain_beside_the_hybrid_target_follows_it_too(v1):
    result, plain = v1["chain schedule"], v1["plain"]
    ks = phases(result)
    assert set(ks) == {4, 2, 1, 0}
    assert EAGLE_K in ks[ks.index(0) :]
    assert_drafts_follow_the_schedule(result, EAGLE_SCHEDULE)
    assert_only_near_ties(plain, result["tokens"], "schedule")
    widths = drafts_by_width(result, v1["chain fixed"])
    assert widths[EAGLE_K][0] >= 30
    ours, with_a_hole = (differing(v1[name], v1["chain fixed"]) for name in ("chain schedule", HOLE))
    print(f"\ndrafts that differ: {ours:.3f}, with a hole {with_a_hole:.3f}")
    assert ours < with_a_hole / 4  # near-ties of bfloat16, whose batches have other shapes


def differing(left: dict[str, Any], right: dict[str, Any]) -> float:
    counts = [counts for width, counts in drafts_by_width(left, right).items() if width]
    return sum(differ for _, differ in counts) / sum(count for count, _ in counts)


V2_JOINS, V2_LENGTHS = [0, 4, 5, 6], [44, 10, 10, 8]


def v2_schedule(k: int) -> list[list[int]]:
    return [[1, 1, k], [2, 2, 2], [3, 3, 1], [4, 256, 0]]


@pytest.fixture(scope="module")
def v2(prompts):
    """A few tokens: Triton's interpreter is slow."""
    texts = [prompt[:24] for prompt in prompts[: len(V2_JOINS)]]
    waves = [Batch("waves", texts, max_tokens=V2_LENGTHS, joins=V2_JOINS, logprobs=5)]
    hybrid = {"options": REPLAY, "target": TARGET}
    dense = {"engine_args": {"dtype": "float32"}}
    pairs = {"dflash": (dflash(K), hybrid), "eagle3": (eagle3("postnorm", EAGLE_K), dense)}
    engines = [
        Engine(f"{name} {kind}", waves, draft, **around)
        for name, (fixed, around) in pairs.items()
        for kind, draft in (
            ("fixed", fixed),
            ("schedule", following(fixed, v2_schedule(fixed["num_speculative_tokens"]))),
        )
    ]
    return {name: result["waves"] for name, result in run_engines(engines, "v2").items()}


def largest_gap(left: dict[str, Any], right: dict[str, Any]) -> float:
    """Between the log-probabilities of what both runs may say, token by token, until they part."""
    rows = []
    for i, (a, b) in enumerate(zip(left["tokens"], right["tokens"], strict=True)):
        pairs = zip(left["logprobs"][i], right["logprobs"][i], strict=True)
        rows += list(pairs)[: accepted_length(a, b) + 1]
    return max(abs(a[t] - b[t]) for a, b in rows for t in a.keys() & b.keys())


def gaps_of_differing_ids(
    left: dict[str, Any], right: dict[str, Any], walk: Any, target: Any
) -> list[float]:
    """Of every drafted id in which two runs of the same texts differ: how far apart the reference, in
    fp32, sees both in log-probability. A DFlash draft's ids do not depend on one another."""
    gaps = []
    drafts = drafts_of(left), drafts_of(right)
    texts = zip(left["prompts"], left["tokens"], common_lengths(left, right), *drafts, strict=True)
    for prompt, said, common, one, other in texts:
        tokens = [*prompt, *said]
        _, context = walk.true_rows(tokens, residual_stream(target, tokens, DFLASH_AUX_LAYERS))
        for length in sorted(one.keys() & other.keys()):
            pairs = list(enumerate(zip(one[length], other[length], strict=False)))
            if length > common or all(a == b for _, (a, b) in pairs):
                continue  # some lie behind a text's end
            seen = walk.logits(context[: length - 1], tokens[length - 1], K).log_softmax(-1)
            gaps += [float((seen[i, a] - seen[i, b]).abs()) for i, (a, b) in pairs if a != b]
    return gaps


@pytest.mark.v2
def test_drafts_of_a_schedule_on_v2_differ_at_near_ties_alone(v2, dflash_walk, hybrid_target):
    """A plain decode's convolution and attention round otherwise in bf16 than a verify row's."""
    result, fixed = v2["dflash schedule"], v2["dflash fixed"]
    gaps = gaps_of_differing_ids(result, fixed, dflash_walk, hybrid_target)
    print(f"\n{len(gaps)} drafted ids differ, at gaps {sorted(gaps)}")
    assert max(gaps, default=0) <= NEAR_TIE_GAP
    assert len(gaps) <= 0.1 * sum(len(row) for rows in drafts_of(result) for row in rows.values())
    others = result | {"placed": [shifted(rows) for rows in result["placed"]]}
    control = gaps_of_differing_ids(others, fixed, dflash_walk, hybrid_target)
    assert sorted(control)[len(control) // 2] > 10 * NEAR_TIE_GAP


def shifted(placed: dict[str, list[int]]) -> dict[str, list[int]]:
    """Drafts that are none: each id stands a place too early."""
    return {length: [*row[1:], *row[:1]] for length, row in placed.items()}


@pytest.mark.v2
@pytest.mark.parametrize(("draft", "k"), [("dflash", K), ("eagle3", EAGLE_K)])
def test_a_schedule_on_v2(v2, draft, k):
    fixed, result = (v2[f"{draft} {kind}"] for kind in ("fixed", "schedule"))
    assert phases(result) == [k, 2, 1, 0, 2, k]
    assert_drafts_follow_the_schedule(result, v2_schedule(k))
    gaps = assert_only_near_ties(fixed, result["tokens"], "schedule")
    widths = drafts_by_width(result, fixed)
    print(f"\nwidth: drafts, differing from those of K={k}: {widths}")
    assert {2, k} <= widths.keys()
    assert widths[k][0] >= 10
    if draft == "eagle3":  # in float32; of the other's drafts the test above
        assert not gaps
        assert sum(differ for _, differ in widths.values()) == 0
    apart = largest_gap(fixed, result)
    print(f"log-probabilities of the texts differ by up to {apart:.3f}")
    assert apart <= NEAR_TIE_GAP
