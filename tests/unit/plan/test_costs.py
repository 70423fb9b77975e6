"""`vllm-eagle plan`: what a request costs with vLLM's own scheme and with replay."""

from __future__ import annotations

import re

import pytest

from tests.unit.plan.inputs import GIB, H200, write_shard


def test_table(plan, target):
    result = plan(*H200)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{target}: 48 gated delta nets, 16 full-attention layers"
    assert lines[1] == "weights  50.1 GiB, estimated from config.json within 2%, no weights at hand"
    assert lines[2].startswith("KV cache 76.6 GiB: 0.92 of 140 GiB, less weights, 128 MiB of rope")
    assert lines[3] == (
        "vLLM     0.32 (as given) on sm_90 (assumed); GDN prefill: flashinfer; attention blocks: "
        "multiples of 16 tokens"
    )
    table = lines[5:17]
    assert all(len(line) <= 100 for line in table)
    cells = [re.split(r"\s{2,}", line.strip()) for line in table]
    rows = {name: found for name, *found in cells}
    assert rows["per request, with hybrid_state"] == ["per_token", "replay"]
    assert rows["state blocks in each layer"] == ["17", "2"]
    assert rows["one block of a layer, MiB (attention tokens)"] == ["3.38 (864)", "3.62 (928)"]
    assert rows["layers of a cache group (padding of all groups)"] == ["16 (0)", "16 (0)"]
    assert rows["recurrent state, MiB"] == ["2754", "348"]
    assert rows["recorded inputs in it, MiB"] == ["0", "24"]
    assert rows["keys and values of 32768 tokens, MiB"] == ["2052", "2088"]
    assert rows["requests of 32768 tokens that fit"] == ["16", "32"]
    assert rows["recurrent state moved per step, MiB"] == ["2448", "456"]
    assert rows["that a CUDA graph of 512 tokens holds"] == ["32", "32"]
    assert lines[17] == (
        "Recurrent state: replay, 2 state blocks per request (per_token: 17): 348 MiB instead of 2754 "
        "MiB per request, recorded inputs 24 MiB of it; 32 requests of 32768 tokens fit instead of 16."
    )
    assert lines[18] == (
        "- 2 state blocks are a worst case: what prefix caching adds is held only while a text crosses "
        "the end of a block."
    )
    assert lines[19] == (
        "- Shorter requests show it more: of 8192 tokens, 90 run at a time instead of 23."
    )


def test_json(said, plan):
    found = said(*H200, "--no-prefix-caching")
    assert found["line"] == plan(*H200, "--no-prefix-caching").stdout.splitlines()[17]
    assert not any("worst case" in text for text in found["advice"])
    for scheme in ("per_token", "replay"):
        cost = found[scheme]
        assert (cost["layers_per_cache_group"], cost["padding_layers"]) == (16, 0)
        fit = (cost["pool_blocks"] - 1) // cost["blocks_per_request"]
        assert cost["requests_that_fit"] == cost["requests_that_run"] == fit


def test_the_length_is_the_target_s_own_unless_given(said):
    assert said("-k", "7", "--gpu-mem", "140")["max_model_len"] == 262144


@pytest.mark.parametrize("place", ["config.json", "another.json"])
def test_a_config_instead_of_a_folder(said, target, place):
    write_shard(target / "model.safetensors", {"weight": GIB})
    path = (target / "config.json").rename(target / place)
    found = said(*H200, of=path)
    assert found["per_token"]["pages_per_request"] == 17
    assert found["weights"]["origin"].startswith("by its" if place == "config.json" else "estimated")
