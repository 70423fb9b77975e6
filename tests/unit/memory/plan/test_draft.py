"""`vllm-eagle plan --draft`."""

from __future__ import annotations

import pytest

from tests.support import published
from tests.support.checkpoints import tiny_draft
from tests.unit.cli.output import refusal
from tests.unit.memory.plan.inputs import H200


def test_a_dflash_draft(said, tmp_path):
    checkpoint = next(c for c in published.published() if c.slug == "specforge_qwen3_6_27b_dflash")
    draft = published.materialise(checkpoint, tmp_path / "draft")
    without, found = said(*H200), said(*H200, "--draft", str(draft))
    size = sum(path.stat().st_size for path in draft.glob("*.safetensors"))
    assert found["draft_weights_bytes"] == size
    assert without["kv_budget_bytes"] - found["kv_budget_bytes"] == pytest.approx(size, abs=2)
    tokens, page = (found["per_token"][key] for key in ("attention_block_tokens", "page_bytes"))
    window, whole = -(-(2047 + 2 * 8192) // tokens) + 1, -(-32768 // tokens)
    more = found["per_token"]["attention_bytes"] - without["per_token"]["attention_bytes"]
    assert more == (4 * window + whole) * page


def test_a_draft_is_shown(plan, tmp_path):
    lines = plan(*H200, "--draft", str(tiny_draft(tmp_path / "draft"))).stdout.splitlines()
    assert lines[2] == "draft    0.00 GiB, 1 attention layer"


@pytest.mark.parametrize("slug", ["kimi_k2_5_mla", "kimi_k3_dspark"])
def test_a_draft_of_another_kind(plan, tmp_path, slug):
    checkpoint = next(c for c in published.published() if c.slug == slug)
    draft = published.materialise(checkpoint, tmp_path / "draft")
    message = refusal(plan(*H200, "--draft", str(draft)))
    assert "--draft" in message or "of the draft's config.json" in message
