"""Requests with images, on a small random LLaVA: served with drafts, texts as without. V1, float32."""

from __future__ import annotations

import pytest

from tests.support.engine import IN_PROCESS, TIMEOUT_S, engine_environment, run_child

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_texts_about_images_are_those_without_a_draft(tmp_path):
    environment = engine_environment("v1") | IN_PROCESS
    found, _ = run_child(
        "images_process", {"folder": tmp_path}, environment=environment, timeout_s=TIMEOUT_S
    )
    plain, drafted = found["plain"], found["drafted"]
    assert drafted["drafter"] == "Eagle3EagleExtLlamaForCausalLM"
    assert drafted["drafts"] > 10
    assert plain["prompt_lengths"] == [9, 9, 3]  # an image takes four places
    assert plain["tokens"][0] != plain["tokens"][1]  # of the same words
    assert drafted["tokens"] == plain["tokens"]
