"""How `vllm-eagle check` says that a hybrid target's states will be kept."""

from __future__ import annotations

import json

import pytest

from tests.support.engine import TINY
from tests.support.releases import is_release

HYBRID = ("--target", str(TINY / "hybrid_target"))
BLOCKS, CACHED = "state blocks per request (committed state", "block boundary of prefix caching"
MORE = not is_release("0.32")  # an H100's prefill exports states
CACHED += ", state exported by the prefill" * MORE


@pytest.mark.parametrize(
    ("asked", "k", "kept"),
    [
        ("auto", "1", f"per_token, {3 + MORE} {BLOCKS}, 1 draft token, {CACHED}); 1 draft token saves"),
        ("auto", "3", f"replay, {2 + MORE} {BLOCKS}, {CACHED}); 3 draft tokens"),
        ("per_token", "7", f"per_token, {9 + MORE} {BLOCKS}, 7 draft tokens, {CACHED}); additional"),
        ("replay", "2", f"replay, {2 + MORE} {BLOCKS}, {CACHED}); additional_config"),
    ],
)
def test_how_states_are_kept(check, asked, k, kept):
    options = json.dumps({"hybrid_state": asked})
    result = check(TINY / "dflash", *HYBRID, "-k", k, "--eagle-ext", options)
    assert f"recurrent state   {kept}" in result.stdout
    said = json.loads(check(TINY / "dflash", *HYBRID, "-k", k, "--eagle-ext", options, "--json").stdout)
    assert said["recurrent_state"].startswith(kept)


@pytest.mark.parametrize(
    ("published", "replays"), [("float16", False), ("float32", True), ("bfloat16", True)]
)
def test_a_target_in_the_dtype_that_it_was_published_in(check, tmp_path, published, replays):
    """vLLM serves float32 in bfloat16, in which a CPU replays."""
    for file in (TINY / "hybrid_target").iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text()) | {"dtype": published}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = ("--target", str(tmp_path), "--platform", "cpu", "-k", "7")
    result = check(TINY / "dflash", *target)
    assert ("recurrent state   replay" in result.stdout) is replays, result.stdout
