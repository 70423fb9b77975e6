"""`vllm-eagle plan`: the target's weights, given, measured or estimated."""

from __future__ import annotations

import json

import pytest

from tests.unit.plan.inputs import GIB, H200, write_shard
from vllm_eagle_ext.checkpoint import headers


def test_weights_as_given(said):
    found = said(*H200, "--weights-gib", "27.5", "--reserve-gib", "3")
    assert found["weights"] == {"bytes": int(27.5 * GIB), "origin": "as given"}
    assert found["kv_budget_bytes"] == int((140 * 0.92 - 27.5 - 3) * GIB - found["rope_table_bytes"])


def test_weights_by_their_files(said, target):
    write_shard(target / "model.safetensors", {"layers.0": 3 * GIB, "mtp.layers.0": GIB})
    assert said(*H200)["weights"] == {"bytes": 3 * GIB, "origin": "by its files"}


def test_weights_by_an_index(said, target):
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name in (*names, "consolidated.safetensors"):
        write_shard(target / name, {name: GIB})
    index = target / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: name for name in names}}))
    assert said(*H200)["weights"]["bytes"] == 2 * GIB
    (target / names[1]).unlink()
    found = said(*H200)["weights"]
    assert found["bytes"] == pytest.approx(2 * 26.896e9, rel=0.001)
    assert found["origin"].endswith("1 of its files are missing")


def test_weights_of_a_file_with_a_huge_header(said, target, monkeypatch):
    write_shard(target / "model.safetensors", {"mtp.layers.0": GIB})
    monkeypatch.setattr(headers, "HEADER_LIMIT", 8)
    assert said(*H200)["weights"]["bytes"] == (target / "model.safetensors").stat().st_size
