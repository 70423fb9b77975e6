"""The trained draft on the V2 runner behind a hit in vLLM's prefix cache: it accepts as much, and
changes no text, with the hit's last block and without, with states of every block boundary or of the end
of a prompt alone. How runs with the cache on are made, `tests/support/turns.py` says."""

from __future__ import annotations

import pytest

from tests.support.hybrid import HybridRun, dflash, started
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps
from tests.support.releases import is_release
from tests.support.turns import BLOCK, CACHED, second_turn_gaps, two_turns

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

K = 7
CACHES = ("off", "on", "at ends")
DROPPED = ("dropped", "at ends, dropped") if is_release("0.32") else ()  # 0.33 drops no block


@pytest.fixture(scope="module")
def trained(prompts):
    """The trained draft, with and without the cache; two prompts go on behind two block boundaries,
    the text of a third passes the second one."""
    run = {"state": "replay", "speculative": dflash(K)}
    turns = two_turns(prompts)
    flat = [token for prompt in turns["prompts"] for token in prompt]
    texts = {
        "prompts": [
            flat[: 2 * BLOCK + 20],
            flat[600 : 600 + 2 * BLOCK + 60],
            flat[1500 : 1500 + 2 * BLOCK - 20],
        ],
        "max_tokens": 48,
        "then": turns["then"],
    }
    dropped = run | {"speculative": dflash(K) | {"disable_eagle_block_drop": False}}
    at_ends = CACHED | {"prefix_cache_retention_interval": 0}  # vLLM's default
    runs = [
        HybridRun("off", engine_args={"enable_prefix_caching": False}, **texts, **run),
        HybridRun("on", engine_args=CACHED, **texts, **run),
        HybridRun("at ends", engine_args=at_ends, **texts, **run),
        HybridRun("dropped", engine_args=CACHED, **texts, **dropped),
        HybridRun("at ends, dropped", engine_args=at_ends, **texts, **dropped),
    ]
    runs = [run for run in runs if run.name in CACHES + DROPPED]
    return started(runs, "v2") | started([HybridRun("plain", logprobs=5, **texts)], "v1")


def of_turns(trained) -> dict[str, tuple[int, list[int]]]:
    return {name: of_second_turn(trained[name]) for name in CACHES + DROPPED}


def of_second_turn(result) -> tuple[int, list[int]]:
    """Drafts, and drafts accepted per position."""
    first, both = result["first_counters"], result["counters"]
    per_position = "spec_decode_num_accepted_tokens_per_pos"
    counts = [b - a for a, b in zip(first[per_position], both[per_position], strict=True)]
    return both["spec_decode_num_drafts"] - first["spec_decode_num_drafts"], counts


def computed_anew(result) -> list[int]:
    """Tokens of the second turns' prompts behind their hits."""
    texts, said = (map(len, result[part]) for part in ("texts", "second_turn"))
    hits = result["second_cached"]
    return [text - own - hit for text, own, hit in zip(texts, said, hits, strict=True)]


def test_a_trained_draft_accepts_as_much_after_a_hit(trained):
    off, on = trained["off"], trained["on"]
    counts = {name: of_second_turn(trained[name]) for name in ("off", "on")}
    print(f"\ncached {on['second_cached']}; second turn, drafts and accepted: {counts}")
    assert min(on["second_cached"]) >= BLOCK
    assert max(off["second_cached"]) == 0
    lengths = {name: 1 + sum(per) / drafts for name, (drafts, per) in counts.items()}
    assert lengths["off"] > 1.5
    assert lengths["on"] > 0.9 * lengths["off"]


def test_a_hit_keeps_its_last_block(trained):
    """Of texts of two whole blocks and more. A state is kept at a prompt's last block boundary, if
    nowhere else, and where the last block is dropped a block before that: the third prompt has none
    there, so that nothing of it is found.
    """
    cached = {name: trained[name]["second_cached"] for name in CACHES + DROPPED}
    lengths = {name: 1 + sum(per) / drafts for name, (drafts, per) in of_turns(trained).items()}
    for name in CACHES + DROPPED:
        print(f"\n{name}: hits {cached[name]}, computed anew {computed_anew(trained[name])}", end="")
        print(f", tokens per step {lengths[name]:.2f}", end="")
    assert cached["on"] == [2 * BLOCK, 2 * BLOCK, 2 * BLOCK]
    assert cached["at ends"] == [2 * BLOCK, 2 * BLOCK, BLOCK]
    assert all(cached[name] == [BLOCK, BLOCK, 0] for name in DROPPED)
    assert min(lengths.values()) > 0.9 * lengths["off"]


@pytest.mark.parametrize("name", CACHES + DROPPED)
def test_a_trained_draft_changes_no_text(trained, name):
    plain, drafted = trained["plain"], trained[name]
    gaps = near_tie_gaps(plain["tokens"], plain["logprobs"], drafted["tokens"])
    gaps += second_turn_gaps(plain, drafted)
    print(f"\n{name}: gaps {gaps}")
    assert max(gaps, default=0) <= NEAR_TIE_GAP
