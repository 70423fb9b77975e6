"""What is checked is what vLLM's own search for weights finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.checkpoints import tiny_draft
from tests.support.drafts import inspect, valid_draft
from tests.unit.checkpoint.hostile.breaks import INDEX, WEIGHTS
from tests.unit.checkpoint.hostile.test_hostile_files import time_limit
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError


def of_vllm(folder) -> set[str]:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return {
        Path(path).name
        for path in DefaultModelLoader(LoadConfig())._prepare_weights(
            str(folder), None, None, True, None
        )[1]
    }


def ours(folder) -> set[str]:
    return {header.file for header in read_draft_files(str(folder)).tensors.values()}


@pytest.mark.parametrize("index", [None, INDEX, "consolidated.safetensors.index.json"])
@pytest.mark.parametrize("name", ["consolidated.safetensors", "consolidated-1.safetensors"])
def test_consolidated_files_are_loaded_in_place_of_others(tmp_path, name, index):
    folder = tiny_draft(tmp_path / "draft")
    shutil.copy(folder / WEIGHTS, folder / name)
    if index:
        named = WEIGHTS if index == INDEX else name
        (folder / index).write_text(json.dumps({"weight_map": {"fc.weight": named}}))
    assert ours(folder) == of_vllm(folder) == {name}


def test_a_name_with_a_dot_first_is_left_out(tmp_path):
    folder = tiny_draft(tmp_path / "draft")
    (folder / f"._{WEIGHTS}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert ours(folder) == of_vllm(folder) == {WEIGHTS}
    (folder / WEIGHTS).rename(folder / f".{WEIGHTS}")
    with pytest.raises(UnsupportedDraftError, match="without any"):
        read_draft_files(str(folder))
    with pytest.raises(RuntimeError, match="Cannot find any model weights"):
        of_vllm(folder)


@pytest.mark.parametrize("name", ["draft[1]", "draft*", "draft?"])
def test_a_folder_whose_name_is_a_pattern(tmp_path, name):
    folder = tiny_draft(tmp_path / name)
    with pytest.raises(UnsupportedDraftError, match=r"a path without \*, \? and \["):
        read_draft_files(str(folder))


@pytest.mark.parametrize("metadata", [{"format": 5}, {"a": None}, [], "pt", 5, None, {"a": {}}])
def test_metadata_that_safetensors_refuses(tmp_path, metadata):
    from safetensors import SafetensorError, safe_open

    folder = tiny_draft(tmp_path / "draft")
    raw = json.dumps({"__metadata__": metadata, "x": {
        "dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()  # fmt: skip
    (folder / WEIGHTS).write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    try:
        with safe_open(folder / WEIGHTS, "pt"):
            pass
    except SafetensorError:
        with pytest.raises(UnsupportedDraftError, match="__metadata__"):
            read_draft_files(str(folder))
    else:
        assert ours(folder)


def test_warnings_have_an_end(tmp_path):
    draft = valid_draft("native")
    draft.config |= {f"norm_{number}": 2.5 for number in range(20_000)}
    with time_limit():
        found = inspect(draft, tmp_path).findings
    assert len(found) < 60
    assert "number of further findings of this rule is 19950" in str(found[-1].problem)
