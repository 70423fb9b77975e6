"""Requests drawn by chance get the texts of an engine without a draft, and no engine ends.

Budgets of thinking, default sampling, grammars and the end of the context, join by chance; the last two
and chunks make steps of fewer than K drafts. Dense targets in float32: every text is equal. Hybrid ones,
by `hybrid_state` auto, in bf16: up to near-ties.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.batches import eagle3
from tests.support.engine import TINY
from tests.support.hybrid import TARGET, dflash
from tests.support.kinds import UNREACHED
from tests.support.near_ties import NEAR_TIE_GAP
from tests.support.random_requests import BY_CHANCE, ONE_TOKEN, Pair, kinds_on, run_drawn

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DENSE = Pair(TINY / "target", {"dense": eagle3("postnorm", 4)}, {"dtype": "float32"})
HYBRID = Pair(TARGET, {f"hybrid, K = {k}": dflash(k) for k in (1, 2, 7)})
FEW = Pair(TARGET, {"hybrid, K = 2": dflash(2)})
# runner, pair, requests per draft, tokens of an answer
RUNS = {
    "dense": ("v1", DENSE, 63, 32),
    "hybrid": ("v1", HYBRID, 63, 32),
    "dense on V2": ("v2", DENSE, 42, 12),  # Triton's interpreter is slow
    "hybrid on V2": ("v2", FEW, 21, 8),
}
SEED = 20_261_127


@pytest.fixture(scope="module", params=RUNS)
def run(request, prompts):
    runner, pair, count, most = RUNS[request.param]
    seeds = {name: SEED + i for i, name in enumerate(pair.drafts)}
    return run_drawn(pair, seeds, count, prompts, runner, most)


def divergence(plain, drafted, logprobs) -> float | None:
    """How far apart the plain run saw two tokens where the texts diverge; None: they do not."""
    for left, right, seen in zip(plain, drafted, logprobs, strict=False):
        if left != right:
            return seen[str(left)] - seen.get(str(right), float("-inf"))
    return None if len(plain) == len(drafted) else float("inf")


def test_texts_are_those_without_a_draft(run):
    for name, drawn in run.items():
        kinds, gaps = Counter(), {}
        # Top-k of one leaves no other token's log-probability, by which a near-tie could be told.
        not_compared = {BY_CHANCE, *([ONE_TOKEN] if "hybrid" in name else [])}
        plain, drafted = drawn["plain"], drawn["drafted"]
        for i, request in enumerate(drawn["asked"]):
            if request.kind in not_compared:
                assert len(drafted["tokens"][i]) == request.params["max_tokens"]
                continue
            kinds[request.kind] += 1
            gap = divergence(plain["tokens"][i], drafted["tokens"][i], plain["logprobs"][i])
            if gap is not None:
                gaps[request.kind, i] = gap
                continue
            assert drafted["finish"][i] == plain["finish"][i]
        print(f"\n{name}: {kinds.total()} texts compared, {dict(kinds)}; gaps {gaps}")
        assert set(kinds) == {*kinds_on(drawn["runner"])} - not_compared
        assert max(gaps.values(), default=0) <= (NEAR_TIE_GAP if "hybrid" in name else 0)


def test_budgets_end_thinking(run):
    """Or equality with the texts without drafts would say nothing. vLLM counts one token more."""
    for name, drawn in run.items():
        end, ended, whole = drawn["end"], 0, 0
        for request, tokens in zip(drawn["asked"], drawn["drafted"]["tokens"], strict=True):
            budget = request.params.get("thinking_token_budget")
            if budget == UNREACHED or len(tokens) < budget + 1 + len(end):
                continue
            whole += 1
            ended += any(tokens[i : i + len(end)] == end for i in range(budget + 2))
        print(f"\n{name}: {ended} of {whole}")
        assert ended == whole > 0


def test_steps_of_few_drafts_were_met(run):
    """And drafts were accepted, so that a step follows accepted rows."""
    for name, drawn in run.items():
        verified = Counter(n for step in drawn["drafted"]["steps"] for n in step["verified"].values())
        print(f"\n{name}: drafts of a request in a step: {dict(sorted(verified.items()))}")
        assert drawn["drafted"]["counters"]["spec_decode_num_accepted_tokens"] > 10
        assert len(verified) > 2 or max(verified) < 2
