"""`draft_window`: a draft attends to its last tokens alone. No text changes, what is drafted is what the
reference with such a window drafts, and in texts longer than those of its training more is accepted.

The trained EAGLE-3 pair in float32, and the trained DFlash pair on the hybrid target: on V1, and on V2
with fewer texts.
"""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Batch, Engine, eagle3, run_engines
from tests.support.engine import TINY
from tests.support.hybrid import TARGET as HYBRID
from tests.support.hybrid import dflash
from tests.support.near_ties import NEAR_TIE_GAP, assert_only_near_ties, near_tie_gaps
from vllm_eagle_ext.draft import (
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.measure.reference.published import load_reference, residual_stream
from vllm_eagle_ext.options import Options

pytestmark = [pytest.mark.e2e, pytest.mark.long]

WINDOW, CONTEXT, TEXTS, TOKENS, CHECKED = 64, 970, 6, 32, 3
TEXTS_ON_V2, TOKENS_ON_V2 = 2, 10
TARGETS = {"eagle3": "target", "dflash": "hybrid_target"}  # fixtures
EQUAL, UNEQUAL = {"eagle3": 1, "dflash": 0.97}, 0.9  # shares of the reference's ids
PAIRS = {
    "eagle3": (TINY / "target", eagle3("postnorm", 4), {"dtype": "float32"}, {}),
    "dflash": (HYBRID, dflash(7), {}, {"hybrid_state": "replay"}),
}


def long_texts(count: int) -> list[list[int]]:
    """Beginnings, of CONTEXT tokens, of the library files that the tiny pairs were not trained on."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    library = Path(sysconfig.get_paths()["stdlib"])
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    texts = []
    for name in sorted({json.loads(line)["file"] for line in lines}):
        ids = tokenizer((library / name).read_text())["input_ids"] if (library / name).exists() else []
        if len(ids) >= CONTEXT:
            texts.append(ids[:CONTEXT])
    assert len(texts) >= count
    return texts[:count]


def serve(runner: str, pairs: tuple[str, ...], tokens: int, texts: int) -> dict[str, Any]:
    batches = [Batch("long", long_texts(texts), max_tokens=tokens, logprobs=5)]
    engines = []
    for name in pairs:
        target, draft, arguments, options = PAIRS[name]
        arguments = arguments | {"max_model_len": 1100}
        windowed = options | {"draft_window": WINDOW}
        engines += [
            Engine(f"{name} plain", batches, None, arguments, {}, target),
            Engine(f"{name} full", batches, draft, arguments, options, target),
            Engine(f"{name} windowed", batches, draft, arguments, windowed, target),
        ]
    return {name: run["long"] for name, run in run_engines(engines, runner).items()}


@pytest.fixture(scope="module")
def v1():
    return serve("v1", tuple(PAIRS), TOKENS, TEXTS)


def acceptance_length(result: Any) -> float:
    counters = result["counters"]
    return 1 + counters["spec_decode_num_accepted_tokens"] / counters["spec_decode_num_drafts"]


@pytest.mark.parametrize("kind", ["full", "windowed"])
@pytest.mark.parametrize("pair", PAIRS)
def test_texts_are_those_without_a_draft(v1, pair, kind):
    plain, drafted = v1[f"{pair} plain"], v1[f"{pair} {kind}"]
    most = NEAR_TIE_GAP if pair == "dflash" else 0
    assert_only_near_ties(plain, drafted["tokens"], f"{pair}, {kind}", most)


@pytest.mark.parametrize("pair", PAIRS)
def test_more_is_accepted_behind_a_long_text(v1, pair):
    """The drafts were trained on texts of 256 tokens."""
    full, windowed = (acceptance_length(v1[f"{pair} {kind}"]) for kind in ("full", "windowed"))
    print(f"\n{pair}, {CONTEXT} tokens: {full:.2f} tokens a step, {windowed:.2f} with a window")
    assert windowed > (1.1 if pair == "eagle3" else 1.0) * full


@pytest.mark.parametrize("pair", PAIRS)
def test_drafts_are_those_of_a_reference_with_the_window(v1, request, pair):
    target = request.getfixturevalue(TARGETS[pair])
    assert_drafted_in_a_window(v1[f"{pair} windowed"], pair, target, least=100)


def assert_drafted_in_a_window(result: Any, pair: str, target: Any, *, least: int) -> None:
    """The negative control is a reference that attends to all tokens.

    Args:
        least: drafted tokens that are compared.
    """
    shares = {}
    for window in (WINDOW, None):
        spec = spec_of(pair, window)
        reference = load_reference(spec, Path(PAIRS[pair][1]["model"]), target)
        shares[window], compared = same_drafts(result, spec, reference, target)
        print(f"\n{pair}, window {window}: {shares[window]:.3f} of {compared} drafted tokens are equal")
        assert compared > least
    assert shares[WINDOW] >= EQUAL[pair]
    assert shares[None] < UNEQUAL


def spec_of(pair: str, window: int | None) -> Any:
    folder, speculative, _, _ = PAIRS[pair]
    facts = TargetFacts.from_config(read_config(str(folder)), folder)
    engine = DraftRequest(
        method=speculative["method"],
        k=speculative["num_speculative_tokens"],
        max_model_len=1100,
        options=Options(draft_window=window),
    )
    files = read_draft_files(speculative["model"])
    return inspect_draft(files, facts, engine).spec


def same_drafts(result: Any, spec: Any, reference: Any, target: Any) -> tuple[float, int]:
    """Share of the reference's ids, and how many were compared: those before its first near-tie."""
    same = compared = 0
    texts = zip(result["prompts"], result["tokens"], result["placed"], strict=True)
    for prompt, said, placed in list(texts)[:CHECKED]:
        tokens = [*prompt, *said]
        rows = reference.true_rows(tokens, residual_stream(target, tokens, spec.aux_layers.layer_ids))
        for length, row in placed.items():
            if int(length) > len(tokens):
                continue
            own = reference.draft(int(length) - 2, len(row), rows)
            clear = len(row)
            for place, margin in enumerate(own.margins):
                if margin < 0.05:
                    clear = place
                    break
            compared += clear
            same += sum(a == b for a, b in zip(row[:clear], own.tokens[:clear], strict=True))
    return same / compared, compared


@pytest.fixture(scope="module", params=PAIRS)
def v2(request):
    pair = request.param
    return pair, serve("v2", (pair,), TOKENS_ON_V2, TEXTS_ON_V2)


@pytest.mark.v2
def test_texts_on_v2(v2):
    pair, runs = v2
    plain, windowed = runs[f"{pair} plain"], runs[f"{pair} windowed"]
    gaps = near_tie_gaps(plain["tokens"], plain["logprobs"], windowed["tokens"])
    lengths = {kind: acceptance_length(runs[f"{pair} {kind}"]) for kind in ("full", "windowed")}
    print(f"\n{pair}, tokens a step: {lengths}; gaps {gaps}")
    assert max(gaps, default=0) <= NEAR_TIE_GAP


@pytest.mark.v2
def test_drafts_on_v2_are_those_of_a_reference_with_the_window(v2, request):
    pair, runs = v2
    windowed = runs[f"{pair} windowed"]
    assert windowed["placed"] != runs[f"{pair} full"]["placed"]
    target = request.getfixturevalue(TARGETS[pair])
    assert_drafted_in_a_window(windowed, pair, target, least=15)
