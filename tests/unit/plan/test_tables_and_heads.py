"""`vllm-eagle plan`: rope tables, what a draft's head reads, and vLLM's option for state blocks."""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.checkpoints import HIDDEN
from tests.support.draft_vocabularies import whole, write_ids
from tests.support.drafts import valid_draft, write
from tests.unit.cli.output import refusal
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
    drafted = said(*H200, "--draft", str(draft))
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


def test_the_head_is_told(plan, said, tmp_path):
    draft = write(valid_draft("native"), tmp_path / "draft")
    found = said(*H200, "--draft", str(draft))
    assert found["draft_head_bytes"] > 0
    assert 0 < found["draft_head_share_of_step"] < 0.01
    assert "its head reads " in plan(*H200, "--draft", str(draft)).stdout


def test_vllm_overwrites_the_size_of_state_blocks(said):
    advice = " ".join(said(*H200, "--prefix-caching", "--mamba-block-size", "8192")["advice"])
    assert "overwrites --mamba-block-size 8192" in advice


def test_a_speculators_draft_names_the_target(tmp_path, plan):
    target = write_config(tmp_path / "named", config("qwen3_6_27b"))
    draft = valid_draft("dflash-speculators")
    draft.config["speculators_config"]["verifier"] = {"name_or_path": str(target)}
    from typer.testing import CliRunner

    from vllm_eagle_ext.cli import app

    folder = write(draft, tmp_path / "draft")
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["plan", str(folder), *H200])
    assert result.stdout.startswith(f"{target}: ")
    del draft.config["speculators_config"]["verifier"]
    (folder / "config.json").write_text(json.dumps(draft.config))
    result = CliRunner().invoke(app, ["plan", str(folder), *H200])
    assert result.exit_code == 2
    assert "names no target" in " ".join(result.stderr.split())


def test_a_draft_vocabulary_reads_less_and_is_kept(said, plan, tmp_path):
    draft = write(whole("dflash"), tmp_path / "draft")
    before = said(*H200, "--draft", str(draft))
    file = write_ids(tmp_path / "ids.json", range(70))
    found = said(*H200, "--draft", str(draft), "--draft-vocabulary", file)
    rows = 2 * 70 * HIDDEN
    assert found["draft_head_bytes"] == rows < before["draft_head_bytes"]
    assert found["draft_weights_bytes"] == before["draft_weights_bytes"] + rows
    assert "no such file" in refusal(plan(*H200, "--draft", str(draft), "--draft-vocabulary", "none"))


def test_a_draft_s_own_head_shrinks(said, tmp_path):
    made = whole("native")
    made.tensors["lm_head.weight"] = torch.zeros(made.config["vocab_size"], HIDDEN).bfloat16()
    draft = write(made, tmp_path / "draft")
    before = said(*H200, "--draft", str(draft))
    file = write_ids(tmp_path / "ids.json", range(70))
    found = said(*H200, "--draft", str(draft), "--draft-vocabulary", file)
    assert found["draft_weights_bytes"] < before["draft_weights_bytes"]
    rows = before["draft_weights_bytes"] - found["draft_weights_bytes"]
    assert rows == before["draft_head_bytes"] - found["draft_head_bytes"]


@pytest.mark.parametrize(
    ("draft", "ids", "words"),
    [
        (whole("dspark"), range(70), "a draft that runs in a class of vLLM's"),
        (whole("dflash"), [*range(70), 10**6], "the last is 1000000"),
        (valid_draft("native"), range(70), "a part of a whole vocabulary; the draft's head has 96 rows"),
    ],
    ids=["vLLM's class", "ids beyond", "a part"],
)
def test_a_draft_vocabulary_that_a_start_refuses(plan, tmp_path, draft, ids, words):
    given = ("--draft", str(write(draft, tmp_path / "draft")))
    result = plan(*H200, *given, "--draft-vocabulary", write_ids(tmp_path / "i.json", ids))
    assert words in " ".join(refusal(result).split())
