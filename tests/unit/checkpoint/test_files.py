from __future__ import annotations

import shutil

import pytest

from tests.support.checkpoints import draft_config, tiny_draft, write_draft
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError


def test_headers_carry_canonical_names_and_shapes(tmp_path):
    files = read_draft_files(str(tiny_draft(tmp_path, num_aux=5)))
    assert files.tensors["fc.weight"].shape == (64, 320)
    assert files.tensors["layers.0.self_attn.q_proj.weight"].dtype == "BF16"
    assert files.config["architectures"] == ["LlamaForCausalLMEagle3"]


def test_no_config(tmp_path):
    tiny_draft(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UnsupportedDraftError, match=r"config\.json"):
        read_draft_files(str(tmp_path))


def test_config_is_not_json(tmp_path):
    tiny_draft(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedDraftError, match="a JSON object"):
        read_draft_files(str(tmp_path))


def test_no_safetensors(tmp_path):
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), None)
    with pytest.raises(UnsupportedDraftError, match="safetensors"):
        read_draft_files(str(tmp_path))


def test_truncated_safetensors(tmp_path):
    weights = tiny_draft(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UnsupportedDraftError, match="complete safetensors file"):
        read_draft_files(str(tmp_path))


def test_neither_folder_nor_repository(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedDraftError, match="no-such-owner/no-such-draft"):
        read_draft_files("no-such-owner/no-such-draft")


def test_path_that_no_hub_would_take():
    with pytest.raises(UnsupportedDraftError, match="folder"):
        read_draft_files("./no/such/folder")


def test_repository_in_the_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "0" * 40
    repository = tmp_path / "models--owner--draft"
    shutil.copytree(tiny_draft(tmp_path / "draft"), repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    files = read_draft_files("owner/draft", download_dir=str(tmp_path))
    assert "fc.weight" in files.tensors
