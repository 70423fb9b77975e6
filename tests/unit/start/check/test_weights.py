"""`vllm-eagle check --weights`: the values of every tensor."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.support.drafts import FAMILIES, valid_draft, write
from vllm_eagle_ext.draft import draft_files, read_draft_files

FC = "fc.weight"


@pytest.fixture
def changed(tmp_path):
    """A valid draft of which one tensor is other."""

    def make(name, change):
        draft = valid_draft("native")
        draft.tensors[name] = change(draft.tensors[name].clone())
        return write(draft, tmp_path / "draft")

    return make


def entry(value):
    def put(tensor):
        tensor.view(-1)[-1] = value
        return tensor

    return put


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_what_is_no_number_is_refused(check, changed, value):
    path = changed(FC, entry(value))
    blind = check(path)
    assert blind.exit_code == 0
    assert "Not looked at: values of large tensors (--weights reads them)" in blind.stdout
    result = check(path, "--weights")
    assert result.exit_code == 1
    assert f"error weights_are_finite: values of {FC} are '1 infinite or NaN'" in result.stdout


def test_many_tensors_are_one_finding(check, tmp_path):
    draft = valid_draft("native")
    matrices = {name: tensor for name, tensor in draft.tensors.items() if tensor.ndim == 2}
    draft.tensors |= {name: torch.full_like(matrices[name], float("nan")) for name in matrices}
    shown = check(write(draft, tmp_path / "draft"), "--weights").stdout
    assert shown.count("error weights_are_finite: ") == 1
    assert f"{sum(map(torch.numel, matrices.values()))} infinite or NaN" in shown


@pytest.mark.parametrize("family", FAMILIES)
def test_valid_drafts_have_no_finding(check, tmp_path, family):
    doc = json.loads(check(write(valid_draft(family), tmp_path / "draft"), "--weights", "--json").stdout)
    assert "weights_are_finite" not in str(doc)


@pytest.mark.parametrize("chunk", [64, 2**20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_values_are_counted_in_one_chunk_or_in_many(tmp_path, monkeypatch, dtype, chunk):
    monkeypatch.setattr(draft_files, "_CHUNK", chunk)
    draft = valid_draft("native")
    drawn = torch.randn(64, 192, generator=torch.Generator().manual_seed(1)).to(dtype)
    drawn[3, 5], drawn[63, 191] = float("nan"), float("inf")
    draft.tensors[FC] = drawn
    files = read_draft_files(str(write(draft, tmp_path)), all_values=True)
    assert files.non_finite == dict.fromkeys(files.tensors, 0) | {FC: 2}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_eight_bits(tmp_path, dtype):
    values = torch.tensor([0.5, float("nan"), -2.0, 448.0]).to(dtype)
    draft = valid_draft("native")
    path = write(draft, tmp_path)
    save_file({**draft.tensors, "extra": values}, path / "model.safetensors")
    assert read_draft_files(str(path), all_values=True).non_finite["extra"] == 1


def test_of_a_draft_that_is_passed_through_nothing_is_read(check, changed, monkeypatch):
    """No rule looks at its values."""
    draft = changed(FC, entry(0.1))
    config = json.loads((draft / "config.json").read_text()) | {"architectures": ["K3DSparkModel"]}
    (draft / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(draft_files, "_count_in_all", lambda *_: pytest.fail("a value was read"))
    doc = json.loads(check(with_a_terabyte(draft, "extra.weight"), "--weights", "--json").stdout)
    assert (doc["left_to_vllm"], doc["exit_code"]) == (True, 0)


TERABYTE = 2**40


def with_a_terabyte(draft, name):
    """A draft with a tensor that its file claims, and that takes no room on the disk."""
    path = draft / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, end = json.loads(raw[8 : 8 + length]), len(raw) - 8 - length
    header[name] = {"dtype": "U8", "shape": [TERABYTE], "data_offsets": [end, end + TERABYTE]}
    written = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written + raw[8 + length :])
        file.truncate(8 + len(written) + end + TERABYTE)
    return draft


@pytest.mark.parametrize("options", ["{}", '{"strict": false}'])
@pytest.mark.parametrize(
    "name",
    ["extra.weight", "fc.more", "rotary_emb.inv_freq", "fc_norm.7.weight", "input_norm.weight", "t2d"],
)
def test_what_the_family_has_not_is_not_read(check, changed, monkeypatch, name, options):
    """A header may claim any size; without --weights it is refused at once."""
    draft = with_a_terabyte(changed(FC, entry(0.1)), name)
    read = []

    def counting(source, file, start, size):
        read.append(size)
        assert sum(read) < 2**30
        return read_exactly(source, file, start, size)

    read_exactly = draft_files.read_exactly
    monkeypatch.setattr(draft_files, "read_exactly", counting)
    blind = check(draft, "--json", "--eagle-ext", options)
    seen = check(draft, "--json", "--eagle-ext", options, "--weights")
    assert seen.exception is None or isinstance(seen.exception, SystemExit)
    assert seen.exit_code == blind.exit_code
    assert json.loads(seen.stdout).get("findings") == json.loads(blind.stdout).get("findings")
