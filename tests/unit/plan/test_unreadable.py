"""`vllm-eagle plan`, exit code 2: targets and arguments from which nothing can be planned."""

from __future__ import annotations

import json

import pytest

from tests.support.checkpoints import tiny_draft
from tests.support.engine import has_gpu
from tests.unit.cli.output import refusal
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import H200, write_config


def test_no_target(plan, tmp_path):
    assert "--target is" in refusal(plan(*H200, of=tmp_path / "nothing"))


def test_a_folder_without_a_config(plan, target):
    (target / "config.json").unlink()
    message = refusal(plan(*H200))
    assert "Allowed: a config.json, or a folder or repository with one" in message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"layer_types": ["mamba"] * 94}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "layer_types"),
    ],
)
def test_a_target_of_another_kind(plan, dense, changes, field):
    config = json.loads((dense / "config.json").read_text())
    message = refusal(plan(*H200, of=write_config(dense, config | changes)))
    assert message.startswith(f"vllm-eagle-ext: {field} of the target's config.json is ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"}, {"num_experts": None, "num_local_experts": 32},
        {"vocab_size": None}, {"moe_intermediate_size": None},
    ],
)  # fmt: skip
def test_a_dense_target_whose_weights_cannot_be_estimated(plan, dense, changes):
    config = json.loads((dense / "config.json").read_text())
    write_config(dense, config | changes)
    assert "What to do: say --weights-gib" in refusal(plan(*H200, of=dense))
    assert plan(*H200, "--weights-gib", "50", of=dense).exit_code == 0


def test_no_gpu_to_read_the_memory_of(plan):
    if has_gpu():
        pytest.skip("this machine has a GPU, whose memory is read")
    message = refusal(plan("-k", "7"))
    assert message.startswith("vllm-eagle-ext: --gpu-mem is missing. Allowed: GiB of one GPU; no GPU is")
    assert "What to do: state it, such as --gpu-mem 80" in message
    assert "--cpu plans for vLLM's CPU backend on this machine" in message


def test_a_target_whose_weights_cannot_be_estimated(plan, tmp_path):
    vague = write_config(tmp_path / "vague", config("qwen3_6_27b", vocab_size=None))
    assert "What to do: say --weights-gib" in refusal(plan(*H200, of=vague))
    assert plan(*H200, "--weights-gib", "50", of=vague).exit_code == 0


def test_a_target_without_a_length(plan, tmp_path):
    short = write_config(tmp_path / "short", config("qwen3_6_27b", max_position_embeddings=None))
    assert "--max-model-len is missing" in refusal(plan("-k", "7", "--gpu-mem", "140", of=short))


def test_json_of_what_cannot_be_read(plan, tmp_path):
    result = plan(*H200, "--json", of=tmp_path / "nothing")
    found = json.loads(result.stdout)
    assert result.exit_code == found["exit_code"] == 2
    assert "What to do: " in found["error"]


@pytest.mark.parametrize(
    "options",
    [
        ("--kv-dtype", "nvfp4"), ("--tp", "3"), ("--tp", "0"), ("-k", "0"), ("-k", "3,"), ("-k", "3,x"),
        ("--gpu-mem", "0"),
        ("--gpu-memory-utilization", "2"), ("--weights-gib", "-1"), ("--max-num-seqs", "0"),
    ],
)  # fmt: skip
def test_bad_options(plan, options):
    name = {"--tp": "tensor_parallel_size"}.get(options[0], options[0])
    message = refusal(plan(*H200, *options))
    assert name in message or options[0] in message


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (LFS, "a Git LFS pointer, not the file itself"),
        ("\n<!DOCTYPE html><html>", "an HTML page, not a checkpoint"),
        ('{"error": "Repository not found"}', "a JSON text, not weights"),
        ("Entry not found", "damaged"),
    ],
    ids=["lfs", "html", "json", "text"],
)
def test_what_lies_in_the_place_of_weights(plan, target, content, value):
    (target / "model.safetensors").write_text(content)
    message = refusal(plan(*H200))
    assert f"model.safetensors of '{target}' is '{value}'" in message
    assert plan(*H200, "--weights-gib", "50").exit_code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_what_lies_in_the_place_of_a_drafts_weights(plan, tmp_path, name):
    draft = tiny_draft(tmp_path / "draft")
    (draft / "model.safetensors").unlink()
    (draft / name).write_text(LFS)
    message = refusal(plan(*H200, "--draft", str(draft)))
    assert f"{name} of '{draft}' is 'a Git LFS pointer, not the file itself'" in message
