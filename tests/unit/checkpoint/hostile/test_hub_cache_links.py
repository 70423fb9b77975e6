"""The hub's cache is made of links: those within a repository are followed, no others."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import tiny_draft
from tests.unit.checkpoint.hostile.breaks import relink
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError


def test_links_of_the_hub_cache(tmp_path):
    """snapshots/<commit>/<file> -> ../../blobs/<hash>"""
    repository = tmp_path / "models--owner--draft"
    draft, snapshot = tiny_draft(repository / "blobs"), repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in draft.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert "fc.weight" in read_draft_files(str(snapshot)).tensors
    (tmp_path / "draft").symlink_to(snapshot)
    assert "fc.weight" in read_draft_files(str(tmp_path / "draft")).tensors


def test_links_out_of_the_hub_cache(tmp_path):
    snapshot = tmp_path / "models--owner--draft" / "snapshots" / ("0" * 40)
    relink(tiny_draft(snapshot) / "config.json", "/etc/passwd")
    with pytest.raises(UnsupportedDraftError, match="a file inside the checkpoint's folder"):
        read_draft_files(str(snapshot))
