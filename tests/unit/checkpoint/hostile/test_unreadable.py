"""What the folder or the system will not give: one printable line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import tiny_draft
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError


def test_name_of_a_file_that_clears_the_terminal(tmp_path):
    (tiny_draft(tmp_path) / "\x1b[2J.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedDraftError, match=r"x1b\[2J.safetensors'") as refusal:
        read_draft_files(str(tmp_path))
    assert str(refusal.value).isprintable()


def test_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    tiny_draft(tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnsupportedDraftError, match=r"config\.json.*'unreadable'.*not for you"):
        read_draft_files(str(tmp_path))


def test_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    tiny_draft(tmp_path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UnsupportedDraftError, match=r"the folder.*'unreadable'.*not for you"):
        read_draft_files(str(tmp_path))
