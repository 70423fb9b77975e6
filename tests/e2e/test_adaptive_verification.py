"""vLLM's `enable_adaptive_verification` on the hybrid target with replay: drafts are trimmed on the
device, and the host knows only how many rows a step has. V2 on a CPU, with stand-ins for what a device
alone has: full graphs and their widths are left to a GPU.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.batches import Engine, run_engines
from tests.support.breakage import ON_A_DEVICE
from tests.support.engine import has_gpu
from tests.support.hybrid import TARGET, dflash

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.v2,
    pytest.mark.long,
    pytest.mark.skipif(has_gpu(), reason="its stand-ins are a CPU's"),
]

K, CHUNK = 7, 16


@pytest.fixture(scope="module")
def runs(prompts):
    """Prompts in chunks beside verify rows, requests that join and end."""
    lengths = (24, 20, 40, 12, 33)
    job = {
        "prompts": [prompt[:length] for prompt, length in zip(prompts, lengths, strict=False)],
        "max_tokens": [30, 16, 16, 20, 12],
        "joins": [0, 0, 3, 5, 8],
    }
    engines = [
        Engine(
            name,
            [],
            dflash(K) | {"enable_adaptive_verification": by_hand is None},
            {"long_prefill_token_threshold": CHUNK},
            {"hybrid_state": "replay", "adaptive_verification": True},
            TARGET,
            broken_at_start=ON_A_DEVICE,
            use="tests.support.adaptive",
            job=job | {"by_hand": by_hand},
        )
        for name, by_hand in (("adaptive", None), ("by hand", "adaptive"))
    ]
    return run_engines(engines, "v2")


def test_drafts_are_trimmed_on_the_device(runs):
    """Unevenly, where the host spreads them evenly; also beside prompts."""
    steps = [(host, device) for host, device in runs["adaptive"]["widths"] if host != device]
    print(f"\nhost and device, rows per request: {steps}")
    assert len(steps) >= 5
    assert all(sum(host) == sum(device) for host, device in steps)
    assert any(CHUNK in device for _, device in steps)
    assert {host == device for host, device in runs["by hand"]["widths"]} == {True}


def test_everything_is_as_if_they_had_been_trimmed_by_hand(runs):
    """Texts, accepted drafts, and every committed state after every step, bit for bit."""
    adaptive, by_hand = runs["adaptive"], runs["by hand"]
    assert adaptive["tokens"] == by_hand["tokens"]
    assert adaptive["logprobs"] == by_hand["logprobs"]
    states = adaptive["states"]
    print(f"\n{len(states)} commits")
    assert len(states) >= 50
    assert states == by_hand["states"]
    for name in ("num_accepted_tokens", "num_accepted_tokens_per_pos"):
        name = f"spec_decode_{name}"
        assert adaptive["counters"][name] == by_hand["counters"][name]
    assert adaptive["counters"]["spec_decode_num_accepted_tokens"] > 10


def test_what_vllm_counts_as_drafted(runs):
    """What was scheduled, also of drafts that are trimmed on the device afterwards (0.32)."""
    counted = {name: run["counters"]["spec_decode_num_draft_tokens"] for name, run in runs.items()}
    verified = sum(runs["adaptive"]["kept"].values())
    assert counted["by hand"] == verified
    assert counted["adaptive"] > verified


def test_states_differ_from_step_to_step(runs):
    """What the comparison rests on."""
    for run in runs.values():
        assert all(a != b for a, b in pairwise(run["states"].values()))
