"""DFlash2 and DSpark drafts, which vLLM's own classes serve, in engines on the V2 runner: the text is
that without a draft, and what is drafted is what the plain PyTorch reference drafts.

A random dense target with random drafts, in float32; the trained hybrid target with replay, whose
trained DFlash draft got a second head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.breakage import KEYS_NORMED
from tests.support.draft_families import Draft
from tests.support.drafts import valid_draft, write
from tests.support.hybrid import TARGET, HybridRun, started
from tests.support.near_ties import NEAR_TIE_GAP, assert_only_near_ties
from tests.support.random_targets import write_random_target
from tests.support.replay import Comparison, replay
from tests.support.second_head_pairs import on_the_trained_draft, with_another_second_head
from vllm_eagle_ext.draft import (
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.measure.reference.published import load_reference, load_target

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

DENSE = ("dflash2", "dspark", "dspark-speculators")
HYBRID = ("dflash2", "dspark")
PAIRS = [("dense", family) for family in DENSE] + [("hybrid", family) for family in HYBRID]
K, TEXTS, TOKENS = 7, 4, 24
EQUAL_IDS = 0.97  # in bf16
IN_FLOAT32 = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 256}
DENSE_PROMPTS = [[(7 * text + 13 * i) % 90 + 1 for i in range(20)] for text in range(TEXTS)]


@pytest.fixture(scope="module")
def served(prompts, tmp_path_factory) -> dict[str, Any]:
    """Pair -> its draft's folder and target, and what an engine said and drafted; \"plain\" of none."""
    folder = tmp_path_factory.mktemp("pairs")
    dense = write_random_target(folder / "target")
    around: dict[str, dict[str, Any]] = {
        "dense": {"target": dense, "prompts": DENSE_PROMPTS, "engine_args": IN_FLOAT32},
        "hybrid": {"target": TARGET, "prompts": [prompt[:24] for prompt in prompts[:TEXTS]]},
    }
    pairs, runs = {}, []
    for kind, family in PAIRS:
        draft = valid_draft(family) if kind == "dense" else on_the_trained_draft(family)
        path = write(draft, folder / f"{kind} {family}")
        pairs[kind, family] = {"draft": draft, "path": path, **around[kind]}
        speculative = {"method": draft.method, "model": str(path), "num_speculative_tokens": K}
        state = "replay" if kind == "hybrid" else None
        runs.append(
            HybridRun(
                f"{kind} {family}", speculative=speculative, state=state, record=True, max_tokens=TOKENS,
                broken_at_start=KEYS_NORMED, **around[kind],
            )
        )  # fmt: skip
    plain = [
        HybridRun(f"{kind} plain", max_tokens=TOKENS, logprobs=5, **around[kind]) for kind in around
    ]
    return {"pairs": pairs, "found": started([*plain, *runs], "v2")}


def against_the_reference(draft: Draft, path: Path, pair: dict[str, Any], result: Any) -> Comparison:
    facts = TargetFacts.from_config(read_config(str(pair["target"])), pair["target"])
    engine = DraftRequest(method=draft.method, k=K, max_model_len=256)
    spec = inspect_draft(read_draft_files(str(path)), facts, engine).spec
    target = load_target(pair["target"])
    walk = load_reference(spec, path, target)
    layer_ids = spec.aux_layers.layer_ids
    return replay(
        target, walk, layer_ids, pair["prompts"], result["tokens"], result["drafts"], K, chained=True
    )


@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_texts_are_those_without_a_draft(served, kind, family):
    plain, drafted = served["found"][f"{kind} plain"], served["found"][f"{kind} {family}"]["tokens"]
    assert_only_near_ties(plain, drafted, f"{kind} {family}", NEAR_TIE_GAP if kind == "hybrid" else 0)


@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_drafts_are_those_of_the_reference(served, kind, family, tmp_path):
    pair, result = served["pairs"][kind, family], served["found"][f"{kind} {family}"]
    tally = against_the_reference(pair["draft"], pair["path"], pair, result)
    print("", *tally.lines(), sep="\n")
    assert tally.drafts >= 20
    assert min(tally.compared) >= 5
    assert min(tally.equal_share) >= (1 if kind == "dense" else EQUAL_IDS)
    other = with_another_second_head(pair["draft"])
    control = against_the_reference(other, write(other, tmp_path / "other"), pair, result)
    assert min(control.equal_share) < 0.9


@pytest.mark.parametrize("family", HYBRID)
def test_drafts_of_the_trained_draft_are_accepted(served, family):
    counters = served["found"][f"hybrid {family}"]["counters"]
    accepted = counters["spec_decode_num_accepted_tokens"]
    print(f"\n{accepted} of {counters['spec_decode_num_drafts']} drafts' tokens")
    assert accepted > 0.2 * counters["spec_decode_num_drafts"]
