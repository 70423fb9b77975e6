"""`vllm-eagle plan`: what a request costs with slots and with replay."""

from __future__ import annotations

import pytest

from tests.unit.memory.plan.inputs import GIB, H200, MIB, write_shard


def test_table(plan, target):
    result = plan(*H200)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{target}: 48 gated delta nets, 16 full-attention layers"
    assert lines[1] == "weights  50.1 GiB, estimated from config.json within 2%, no weights at hand"
    assert lines[2].startswith("KV cache 76.7 GiB: 0.92 of 140 GiB, less weights and 2 GiB assumed")
    table = lines[4:14]
    assert all(len(line) <= 100 for line in table)
    cells = {line[:52].strip(): line[52:].split() for line in table}
    rows = {name: found[-2:] for name, found in cells.items()}
    assert lines[4].split() == ["per", "request", "per", "token", "replay"]
    assert rows["state pages"] == ["17", "2"]
    assert rows["recurrent state, MiB"] == ["2754", "348"]
    assert rows["records in it, MiB"] == ["0", "24"]
    assert rows["keys and values of 32768 tokens, MiB"] == ["2052", "2088"]
    assert rows["requests of 32768 tokens that fit"] == ["16", "32"]
    assert rows["recurrent state moved per step, MiB"] == ["2448", "456"]
    assert "3.38 (864)  3.62 (928)" in result.stdout
    assert lines[14] == (
        "Recurrent state: replay, 2 pages per request (slots: 17): 348 MiB instead of 2754 MiB per "
        "request, records 24 MiB of it; 32 requests of 32768 tokens fit instead of 16."
    )
    assert lines[15] == (
        "- Shorter requests show it more: of 8192 tokens, 90 run at a time instead of 23."
    )


def test_json(said, plan):
    found = said(*H200, "--no-prefix-caching")
    assert found["per_token"]["pages_per_request"] == 16
    assert found["per_token"]["state_bytes"] == 2592 * MIB
    assert found["replay"]["pages_per_request"] == 1
    assert found["replay"]["page_bytes"] * 48 == found["replay"]["state_bytes"] == 174 * MIB
    assert found["line"] == plan(*H200, "--no-prefix-caching").stdout.splitlines()[14]
    for way in ("per_token", "replay"):
        cost = found[way]
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
