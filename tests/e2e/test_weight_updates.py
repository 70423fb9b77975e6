"""Engines whose draft gets other weights, that sleep, and whose target's weights are loaded again."""

from __future__ import annotations

import pytest

from tests.support.batches import Engine, eagle3, run_engines
from tests.support.engine import TINY
from tests.support.hybrid import TARGET, dflash

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DUMMY = {"draft_load_config": {"load_format": "dummy"}}
ENGINES = {
    "native": ("native", eagle3("native", 4), {}),
    "post-norm": ("postnorm", eagle3("postnorm", 4), {}),
    "gated": ("gated", eagle3("gated", 4), {}),
    "native, dummy": ("native", eagle3("native", 4) | DUMMY, {}),
    "dflash, replay": ("dflash", dflash(7), {"target": TARGET, "options": {"hybrid_state": "replay"}}),
    "dflash, dummy, replay": (
        "dflash",
        dflash(7) | DUMMY,
        {"target": TARGET, "options": {"hybrid_state": "replay"}},
    ),
}
UPDATES = ("noise", "whole", "noise in buckets", "buckets", "sleep 1", "sleep 2", "reload")


@pytest.fixture(scope="module")
def served(prompts):
    """One process for all."""
    job = {"prompts": [prompt[:40] for prompt in prompts[:3]]}
    return run_engines(
        [
            Engine(
                name, [], speculative, use="tests.support.updated", drafts=None,
                job=job | {"draft": str(TINY / draft)}, engine_args={"max_model_len": 512}, **rest,
            )
            for name, (draft, speculative, rest) in ENGINES.items()
        ]
    )  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_the_draft_changes_and_the_target_does_not(served, name):
    answers = served[name]
    trained = answers["whole"]["tau"]
    print("\n", name, {step: round(answers[step]["tau"], 3) for step in ("start", *UPDATES)})
    for step in UPDATES:
        assert answers[step]["tokens"] == answers["start"]["tokens"], step
        assert answers[step]["target_kept"], step
        if step.startswith("noise"):
            assert answers[step]["tau"] < trained / 4, step
        else:
            assert answers[step]["tau"] == trained, step
    if "dummy" in name:
        assert answers["start"]["tau"] < trained / 4
    else:
        assert answers["start"]["tau"] == trained
