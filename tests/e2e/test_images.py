"""Requests with images, on a small random LLaVA: served with drafts, texts as without. V1, float32."""

from __future__ import annotations

import pytest

from tests.support.batches import Batch, Engine, run_engines
from tests.support.drafts import valid_draft, write
from tests.support.llava import write_llava
from tests.support.random_targets import MAX_TOKENS, RANDOM_ENGINE

pytestmark = [pytest.mark.e2e, pytest.mark.long]

WORDS = "w3 w14 <image> w15 w92 w6"
PROMPTS = [
    {"prompt": WORDS, "image": 0},
    {"prompt": WORDS, "image": 1},
    {"prompt": "w27 w18 w28", "image": None},
]
ENGINE = RANDOM_ENGINE | {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 1}}


def test_texts_about_images_are_those_without_a_draft(tmp_path):
    draft = valid_draft("native")
    speculative = {
        "method": draft.method,
        "model": str(write(draft, tmp_path / "draft")),
        "num_speculative_tokens": draft.k,
    }
    target, texts = write_llava(tmp_path / "target"), [Batch("texts", PROMPTS, max_tokens=MAX_TOKENS)]
    engines = [
        Engine("plain", texts, engine_args=ENGINE, target=target),
        Engine("drafted", texts, speculative, engine_args=ENGINE, target=target),
    ]
    plain, drafted = (run["texts"] for run in run_engines(engines).values())
    assert drafted["workers"][0]["drafter"] == "Eagle3EagleExtLlamaForCausalLM"
    assert drafted["counters"]["spec_decode_num_drafts"] > 10
    assert plain["prompt_lengths"] == [9, 9, 3]  # an image takes four places
    assert plain["tokens"][0] != plain["tokens"][1]  # of the same words
    assert drafted["tokens"] == plain["tokens"]
