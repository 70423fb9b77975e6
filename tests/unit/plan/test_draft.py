"""`vllm-eagle plan --draft`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.checkpoints import tiny_draft
from tests.unit.plan.inputs import H200, eagle3, write_config

LONG = 32768
WINDOW = 2048


def test_a_draft_is_shown(plan, tmp_path):
    lines = plan(*H200, "--draft", str(tiny_draft(tmp_path / "draft"))).stdout.splitlines()
    assert lines[2] == "draft    0.00 GiB, 1 attention layer"


def windowed(folder):
    """Published with the window."""
    return eagle3(folder, layer_types=["sliding_attention"], sliding_window=WINDOW)


@pytest.mark.parametrize("asked", [str(WINDOW), "auto"])
def test_beside_full_layers_a_draft_with_a_window_keeps_all(said, plan, dense, tmp_path, asked):
    """In the target's group, as a start lays it out."""
    of, draft = {"of": dense}, eagle3(tmp_path / "draft")
    options = (*H200, "--gpu-mem", "1000", "--draft")
    found = said(*options, draft, "--draft-window", asked, **of)
    assert found["kv"] == said(*options, draft, **of)["kv"]
    assert found["request"]["draft_window"] == (asked if asked == "auto" else WINDOW)
    line = plan(*options, draft, "--draft-window", asked, columns=200, **of).stdout.splitlines()[2]
    assert line.endswith(
        f"1 attention layer; attends to the last {WINDOW} tokens; keeps all, in the group of the "
        "target's layers"
    )
    assert said(*options, windowed(tmp_path / "published"), **of)["kv"] != found["kv"]


def test_beside_windows_of_the_target_a_draft_keeps_its_own(said, dense, tmp_path):
    config = json.loads((dense / "config.json").read_text())
    kinds = ["sliding_attention", "full_attention"] * (config["num_hidden_layers"] // 2)
    mixed = config | {"layer_types": kinds, "sliding_window": 4096}
    of = {"of": write_config(tmp_path / "mixed", mixed)}
    options = (*H200, "--gpu-mem", "1000", "--draft")
    given = said(*options, eagle3(tmp_path / "draft"), "--draft-window", str(WINDOW), **of)
    assert given["kv"] == said(*options, windowed(tmp_path / "published"), **of)["kv"]
    assert given["kv"] != said(*options, eagle3(tmp_path / "plain"), **of)["kv"]


def test_beside_a_hybrid_target_a_draft_keeps_its_window(plan, tmp_path):
    options = (*H200, "--draft", eagle3(tmp_path / "draft"), "--draft-window", str(WINDOW))
    assert plan(*options).stdout.splitlines()[2].endswith(f"the last {WINDOW} tokens, which it keeps")


def test_auto_is_nothing_where_no_text_is_longer(said, plan, tmp_path):
    options = (*H200, "--draft", eagle3(tmp_path / "draft", max_position_embeddings=LONG))
    auto = (*options, "--draft-window", "auto")
    assert said(*options)["replay"] == said(*auto)["replay"]
    assert plan(*auto).stdout.splitlines()[2].endswith("1 attention layer; attends as it was published")


def test_a_published_window_stays(said, tmp_path):
    options = (*H200, "--draft", windowed(tmp_path / "draft"))
    assert said(*options)["replay"] == said(*options, "--draft-window", "64")["replay"]


def test_the_targets_depth_is_no_depth_of_a_draft(said, dense, tmp_path):
    """NeMo AutoModel writes the target's config next to a draft of one layer."""
    options, of = (*H200, "--gpu-mem", "1000", "--draft"), {"of": dense}
    depth = json.loads((dense / "config.json").read_text())["num_hidden_layers"]
    drafts = [eagle3(tmp_path / "one"), eagle3(tmp_path / "deep", num_hidden_layers=depth)]
    for draft in drafts:
        one = {"layers.0.hidden_norm.weight": torch.ones(4)}
        save_file(one, Path(draft) / "model.safetensors")
    plain, deep = (said(*options, draft, **of)["kv"] for draft in drafts)
    assert plain == deep
