"""Folders that hold a tensor twice, or weights of more than one export: what is said of each."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import draft_config, tiny_draft, write_draft
from tests.support.layouts import halves, write_shards
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError


def test_one_tensor_in_two_shards(tmp_path):
    shards = halves()
    shards["b.safetensors"]["model.fc.weight"] = torch.ones(4)
    write_shards(tmp_path, shards)
    with pytest.raises(
        UnsupportedDraftError, match="in a.safetensors and 'model.fc.weight' in b.safetensors"
    ) as refused:
        read_draft_files(str(tmp_path))
    assert "damaged" not in str(refused.value)


def test_two_whole_drafts_in_a_folder(tmp_path):
    tiny_draft(tmp_path)
    (tmp_path / "last.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(UnsupportedDraftError, match=r"move last\.safetensors or model\.safetensors out"):
        read_draft_files(str(tmp_path))


def test_one_tensor_under_two_names(tmp_path):
    tensors = {"fc.weight": torch.ones(4), "model.fc.weight": torch.ones(4)}
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), tensors)
    with pytest.raises(UnsupportedDraftError, match="export the draft again, with each tensor once"):
        read_draft_files(str(tmp_path))


def test_an_index_of_another_export(tmp_path):
    write_shards(tmp_path, halves())
    tiny_draft(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(
        UnsupportedDraftError, match=r"if model\.safetensors holds the whole draft, remove"
    ):
        read_draft_files(str(tmp_path))
