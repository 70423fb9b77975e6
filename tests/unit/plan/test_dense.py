"""`vllm-eagle plan` of a target without recurrent state."""

from __future__ import annotations

import pytest

from tests.unit.plan.inputs import GIB, write_config

H100S = ("-k", "5", "--gpu-mem", "80", "--tp", "8")


def test_table(plan, dense):
    result = plan(*H100S, of=dense, columns=80)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "linear_num_key_heads" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == f"{dense}: 94 layers of full attention"
    assert lines[1] == "weights  437.9 GiB, estimated from config.json within 2%, no weights at hand"
    rows = {line[:40].strip(): line[40:].strip() for line in lines[6:11]}
    assert rows["keys and values of one token, KiB"] == "47"
    assert rows["keys and values of 40960 tokens, MiB"] == "1880"
    assert rows["requests of 40960 tokens that fit"] == "9"
    assert lines[11] == (
        "Not a hybrid target: no recurrent state to plan. Keys and values: 1880 MiB per request; "
        "9 requests of 40960 tokens fit."
    )


def test_json(said, dense):
    found = said(*H100S, of=dense)
    assert (found["per_token"], found["replay"], found["hybrid_state"]) == (None, None, None)
    # Counted once on transformers' own model of this config, on the meta device.
    assert found["weights"]["bytes"] == pytest.approx(2 * 235.0936e9, rel=0.001)


def test_nothing_fits(plan, said, dense):
    assert said("-k", "5", "--gpu-mem", "80", of=dense)["exit_code"] == 1
    short = ("-k", "5", "--gpu-mem", "80", "--tp", "8", "--reserve-gib", "18")
    advice = plan(*short, of=dense).stdout
    length = int(advice.split("use --max-model-len ")[1].split()[0])
    assert plan(*short, "--max-model-len", str(length), of=dense).exit_code == 0
    assert plan(*short, "--max-model-len", str(length + 16), of=dense).exit_code == 1


def test_several_k_are_one_plan(plan, said, dense):
    one, several = (plan("-k", k, *H100S[2:], of=dense).stdout for k in ("5", "3,5"))
    assert one == several


def test_heads_are_the_query_s_where_none_are_stated(said, tmp_path):
    llama = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512,
        "intermediate_size": 256, "hidden_act": "silu", "max_position_embeddings": 2048,
    }  # fmt: skip
    found = said("-k", "3", "--gpu-mem", "8", of=write_config(tmp_path / "llama", llama))
    assert found["kv"]["attention_bytes"] == 2 * 2048 * 2 * 64 * 2
    parameters = 2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 256)
    assert found["weights"]["bytes"] == 2 * parameters
    assert found["kv_budget_bytes"] == int(8 * 0.92 * GIB - 2 * parameters - 2048 * 16 * 2 - 2 * GIB)
