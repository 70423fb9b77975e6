"""`vllm-eagle plan`: rope tables, and what a draft's head reads."""

from __future__ import annotations

import json

import pytest

from tests.support.drafts import valid_draft, write
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import H200, write_config
from vllm_eagle_ext.memory.parameter_count import bytes_per_step, head_read

GPT_OSS_120B = {
    "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "vocab_size": 201_088, "num_local_experts": 128, "num_experts_per_tok": 4,
    "intermediate_size": 2880, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


def test_both_tables_leave_less_for_the_cache(said, target, tmp_path):
    without = said(*H200)
    draft = write(valid_draft("dflash"), tmp_path / "draft")
    drafted = said(str(draft), *H200)
    table = drafted["rope_table_bytes"] - without["rope_table_bytes"]
    assert table > 0
    assert without["kv_budget_bytes"] - drafted["kv_budget_bytes"] == pytest.approx(
        drafted["draft_weights_bytes"] + table, abs=2
    )


LLAMA_70B = {
    "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 128_256, "intermediate_size": 28_672,
}  # fmt: skip
# As compressed-tensors writes it: the experts have four bits.
KIMI_K2 = {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64, "vocab_size": 163_840,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "intermediate_size": 18_432, "first_k_dense_replace": 1,
    "quantization_config": {
        "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("target", "gigabytes", "share"),
    [(GPT_OSS_120B, 1.16, 0.23), (LLAMA_70B, 2.10, 0.015), (KIMI_K2, 2.35, 0.071)],
    ids=["gpt-oss-120b", "Llama-3.3-70B", "Kimi-K2.6"],
)
def test_the_share_of_a_targets_whole_head(target, gigabytes, share):
    read = head_read(2 * target["vocab_size"] * target["hidden_size"], target, at_once=False)
    print(f"\n{read}")
    assert read.size / 1e9 == pytest.approx(gigabytes, abs=0.01)
    assert read.share == pytest.approx(share, rel=0.02)


def test_a_step_of_published_targets():
    """Parameters that a token takes, by their makers' cards."""
    assert bytes_per_step(GPT_OSS_120B) == pytest.approx(4.97e9, rel=0.02)  # experts in 4.25 bit
    assert bytes_per_step(config("qwen3_6_27b")) == pytest.approx(2 * 26e9, rel=0.06)
    # Two layers that stay dense, each in place of ten experts, a shared one and a router.
    sparse, mixed = (config("qwen3_next_80b_a3b", **more) for more in ({}, {"mlp_only_layers": [0, 1]}))
    saved = 11 * 3 * 2048 * 512 + 2048 * 513 - 3 * 2048 * 5632
    assert bytes_per_step(sparse) - bytes_per_step(mixed) == 2 * 2 * saved


def test_the_head_is_told(plan, said, tmp_path):
    draft = write(valid_draft("native"), tmp_path / "draft")
    planned = said(str(draft), *H200)
    assert planned["draft_head_bytes"] > 0
    assert 0 < planned["draft_head_share_of_step"] < 0.01
    assert "its head reads " in plan(str(draft), *H200).stdout


def test_a_speculators_draft_names_the_target(tmp_path, plan):
    target = write_config(tmp_path / "named", config("qwen3_6_27b"))
    draft = valid_draft("dflash-speculators")
    draft.config["speculators_config"]["verifier"] = {"name_or_path": str(target)}
    from typer.testing import CliRunner

    from vllm_eagle_ext.cli import app

    folder = write(draft, tmp_path / "draft")
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["plan", str(folder), *H200, "--weights-gib", "50"]
    )
    assert result.stdout.startswith(f"{target}: ")
    del draft.config["speculators_config"]["verifier"]
    (folder / "config.json").write_text(json.dumps(draft.config))
    result = CliRunner().invoke(app, ["plan", str(folder), *H200])
    assert result.exit_code == 2
    assert "names no target" in " ".join(result.stderr.split())
