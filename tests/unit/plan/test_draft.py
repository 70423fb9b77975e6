"""`vllm-eagle plan DRAFT`."""

from __future__ import annotations

from tests.support.checkpoints import tiny_draft
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import H200, eagle3

WINDOW = 2048


def test_a_draft_is_shown(plan, tmp_path):
    lines = plan(str(tiny_draft(tmp_path / "draft")), *H200).stdout.splitlines()
    assert lines[2] == "draft    0.00 GiB, 1 attention layer"


def windowed(folder):
    """Published with the window."""
    return eagle3(folder, layer_types=["sliding_attention"], sliding_window=WINDOW)


def test_a_draft_with_a_window_keeps_less(said, tmp_path):
    drafts = [make(tmp_path / make.__name__) for make in (eagle3, windowed)]
    full, slides = (said(draft, *H200)["replay"] for draft in drafts)
    assert slides["attention_bytes"] < full["attention_bytes"]


def test_the_targets_depth_is_no_depth_of_a_draft(said, tmp_path):
    """NeMo AutoModel writes the target's config next to a draft of one layer."""
    depth = config("qwen3_6_27b")["text_config"]["num_hidden_layers"]
    drafts = [eagle3(tmp_path / "one"), eagle3(tmp_path / "deep", num_hidden_layers=depth)]
    plain, deep = (said(draft, *H200)["replay"] for draft in drafts)
    assert plain == deep
