from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import (
    DRAFT_VOCAB,
    VOCAB,
    draft_config,
    draft_tensors,
    tiny_draft,
    write_draft,
    write_target,
)
from tests.support.layouts import INDEX, halves, in_hub_cache, write_shards
from vllm_eagle_ext.draft import read_config, read_draft_files
from vllm_eagle_ext.draft.tensors import integers
from vllm_eagle_ext.errors import UnsupportedDraftError


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_all_parts_of_a_draft(tmp_path):
    files = read_draft_files(str(tiny_draft(tmp_path, num_aux=5)))
    assert files.model == str(tmp_path)
    assert files.folder == tmp_path
    assert files.weights == "safetensors"
    assert files.config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert files.tensors["fc.weight"].shape == (64, 320)
    assert set(files.values) == {
        name for name, header in files.tensors.items() if len(header.shape) == 1
    }


def test_headers_say_where_the_bytes_lie(tmp_path):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    files = read_draft_files(str(tiny_draft(tmp_path)))
    content = (tmp_path / "model.safetensors").read_bytes()
    for published, tensor in tensors.items():
        header = files.tensors[published.replace("midlayer.", "layers.0.")]
        assert (header.published, header.shape) == (published, tuple(tensor.shape))
        assert header.file == "model.safetensors"
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        assert content[header.start : header.start + header.size] == raw


@pytest.mark.parametrize(
    ("published", "canonical"),
    [
        ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("model.fc.weight", "fc.weight"),
        ("model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("encoder.fc.weight", "fc.weight"),
        ("encoder.output_norm_enc.weight", "hidden_norm.weight"),
        ("aux_norm_low.weight", "fc_norm.0.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("aux_norm_high.weight", "fc_norm.2.weight"),
        ("draft_id_to_target_id", "d2t"),
        ("remodel.fc.weight", "remodel.fc.weight"),
    ],
)
def test_canonical_names(tmp_path, published, canonical):
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), {published: torch.ones(4)})
    [(name, header)] = read_draft_files(str(tmp_path)).tensors.items()
    assert (name, header.published) == (canonical, published)


def test_values_of_the_vocabulary_map(tmp_path):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    files = read_draft_files(str(tiny_draft(tmp_path)))
    d2t = integers(files.values["d2t"], files.tensors["d2t"].dtype)
    t2d = integers(files.values["t2d"], files.tensors["t2d"].dtype)
    assert len(d2t) == DRAFT_VOCAB
    assert list(d2t) == tensors["d2t"].tolist()
    assert len(t2d) == VOCAB
    assert list(t2d) == tensors["t2d"].int().tolist()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_of_any_width(tmp_path, dtype):
    numbers = [-1, 0, 1, 127]
    tensors = {"d2t": torch.tensor(numbers, dtype=dtype)}
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), tensors)
    files = read_draft_files(str(tmp_path))
    assert list(integers(files.values["d2t"], files.tensors["d2t"].dtype)) == numbers


def test_matrices_and_large_vectors_are_not_read(tmp_path):
    tensors = {"fc.weight": torch.ones(4, 4), "norm.weight": torch.ones(2**20 + 1, dtype=torch.int8)}
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), tensors)
    assert read_draft_files(str(tmp_path)).values == {}


def test_shards_with_an_index(tmp_path):
    files = read_draft_files(str(write_shards(tmp_path, halves())))
    assert files.tensors["fc.weight"].file == "a.safetensors"
    assert {header.file for header in files.tensors.values()} == {"a.safetensors", "b.safetensors"}
    one = read_draft_files(str(tiny_draft(tmp_path / "one")))
    assert files.tensors.keys() == one.tensors.keys()
    assert files.values == one.values


def test_shards_without_an_index(tmp_path):
    (write_shards(tmp_path, halves()) / INDEX).unlink()
    assert "fc.weight" in read_draft_files(str(tmp_path)).tensors


def test_shards_that_the_index_does_not_name(tmp_path):
    """Such as the whole model beside its shards."""
    write_shards(tmp_path, halves())
    tiny_draft(tmp_path)
    (tmp_path / "broken.safetensors").write_bytes(b"")
    files = read_draft_files(str(tmp_path))
    assert {header.file for header in files.tensors.values()} == {"a.safetensors", "b.safetensors"}


def test_shard_that_is_missing(tmp_path):
    (write_shards(tmp_path, halves()) / "b.safetensors").unlink()
    with pytest.raises(
        UnsupportedDraftError, match="without b.safetensors, which model.safetensors.index"
    ):
        read_draft_files(str(tmp_path))


def test_index_of_bin_files_beside_safetensors(tmp_path):
    write_shards(tmp_path, halves(), {"fc.weight": "pytorch_model.bin"})
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedDraftError, match=r"without pytorch_model\.bin"):
        read_draft_files(str(tmp_path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_alone(tmp_path, name):
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), None)
    (tmp_path / name).write_bytes(b"no pickle")
    files = read_draft_files(str(tmp_path))
    assert (files.weights, dict(files.tensors), dict(files.values)) == ("bin", {}, {})


@pytest.mark.parametrize("beside", [(), ("mask_embedding.pt",)])
def test_no_weights(tmp_path, beside):
    write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), None)
    for name in beside:
        (tmp_path / name).write_bytes(b"no pickle")
    with pytest.raises(UnsupportedDraftError, match=r"without any \*\.safetensors"):
        read_draft_files(str(tmp_path))


@pytest.mark.promise("GGUF is refused")
def test_gguf_file(tmp_path):
    file = tmp_path / "draft.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedDraftError, match="use the safetensors it was converted from"):
        read_draft_files(str(file))


@pytest.mark.parametrize("name", ["draft.gguf", "pytorch_model.bin"])
def test_safetensors_win_over_what_lies_beside_them(tmp_path, name):
    (tiny_draft(tmp_path) / name).write_bytes(b"GGUF")
    assert read_draft_files(str(tmp_path)).weights == "safetensors"


def test_file_instead_of_its_folder(tmp_path):
    with pytest.raises(UnsupportedDraftError, match="name the folder, not a file in it"):
        read_draft_files(str(tiny_draft(tmp_path) / "model.safetensors"))


@pytest.mark.parametrize(
    "model",
    ["./no/such/folder", "/no/such/folder", "~no-such-user/draft", "a" * 5000, "a\0b", "s3://a/b"],
)
def test_path_that_no_hub_would_take(offline, model):
    with pytest.raises(UnsupportedDraftError, match="no such folder, and no name"):
        read_draft_files(model)


@pytest.mark.parametrize("model", ["examples/tiny/posnorm", "examples/tyni/postnorm"])
def test_slip_in_a_path(offline, tmp_path, monkeypatch, model):
    """It has the form of a folder in a repository of the hub."""
    (tmp_path / "examples/tiny/postnorm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedDraftError) as caught:
        read_draft_files(model)
    assert "no such folder" in caught.value.remedy
    assert "hf download" not in str(caught.value)


def test_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tiny_draft(tmp_path / "draft")
    files = read_draft_files("~/draft")
    assert (files.model, files.folder) == ("~/draft", tmp_path / "draft")


@pytest.mark.parametrize("target", ["/no/such/target", "owner/target"])
def test_target_that_is_not_there(offline, target):
    with pytest.raises(UnsupportedDraftError) as refusal:
        read_config(target)
    assert refusal.value.field == "the target"


def test_target_without_a_config(tmp_path):
    with pytest.raises(UnsupportedDraftError, match=r"a folder or repository with a config\.json"):
        read_config(str(tmp_path))


@pytest.mark.parametrize("read", [read_config, read_draft_files])
def test_mistrals_own_format_is_named(tmp_path, read):
    (tmp_path / "params.json").write_text('{"dim": 64}')
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    with pytest.raises(
        UnsupportedDraftError, match=r"Mistral's own format, with params\.json"
    ) as refusal:
        read(str(tmp_path))
    assert '"method": "eagle"' in refusal.value.remedy


@pytest.mark.parametrize("read", [read_config, read_draft_files])
@pytest.mark.parametrize("name", ["", "a\0/b\0"])
def test_a_name_that_is_none(offline, tmp_path, monkeypatch, read, name):
    """An empty one is not the working folder, whatever lies there."""
    monkeypatch.chdir(write_target(tmp_path))
    with pytest.raises(UnsupportedDraftError, match="no name that the hub would take"):
        read(name)


@pytest.mark.parametrize("download_dir", ["cache", "a\0b"])
def test_a_cache_that_cannot_be_read(offline, tmp_path, download_dir):
    in_hub_cache(tmp_path / "cache", tiny_draft(tmp_path / "draft"))
    (tmp_path / "cache/models--owner--draft/refs/main").write_bytes(b"\xff\xfe")
    with pytest.raises(UnsupportedDraftError, match="the hub's cache cannot be read"):
        read_draft_files("owner/draft", download_dir=str(tmp_path / download_dir))


def test_target_in_the_hub_cache(offline, tmp_path):
    in_hub_cache(tmp_path, write_target(tmp_path / "target"))
    assert read_config("owner/draft", download_dir=str(tmp_path))["num_hidden_layers"] == 8


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
