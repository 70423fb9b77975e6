"""`vllm-eagle plan`, exit code 2: targets, drafts and arguments from which nothing can be planned."""

from __future__ import annotations

import json

import pytest

from tests.support import published
from tests.support.checkpoints import tiny_draft
from tests.support.engine import has_gpu
from tests.unit.cli.output import refusal
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import H200, write_config

OPTIONS = [
    (("--vllm", "0.31"), "--vllm is '0.31'. Allowed: a release from 0.32 on, such as 0.33."),
    (("--vllm", "newest"), "--vllm is 'newest'. Allowed: a release from 0.32 on"),
    (("--platform", "sm_90"), "--platform is 'sm_90'. Allowed: auto, cpu, cuda, cuda:h100"),
    (("--gdn-prefill", "cuda"), "--gdn-prefill is 'cuda'. Allowed: auto, triton, flashinfer, cutedsl"),
    (("--eagle-ext", '{"draft_window": 64}'), "What to do: name a draft"),
    (("--tp", "3"), "tensor_parallel_size"),
    *(((option, "0"), option) for option in ("--tp", "-k", "--gpu-mem", "--max-num-seqs")),
    *(((option, value), option) for option, value in (
        ("--kv-cache-dtype", "nvfp4"), ("-k", "3,"), ("-k", "3,x"), ("--gpu-memory-utilization", "2"))),
    *(((option, value), option) for value in ("inf", "nan", "-1")
      for option in ("--weights-gib", "--gpu-mem", "--reserve-gib", "--gpu-memory-utilization")),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=str)
def test_options(plan, options, words):
    assert words in refusal(plan(*H200, *options))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_position_embeddings": None}, "--max-model-len is missing"),
        ({"linear_num_key_heads": None}, "What to do: name a draft"),
        ({"layer_types": ["full_attention"]}, "layer_types of the target's config.json is "),
    ],
    ids=str,
)
def test_targets(plan, tmp_path, changes, words):
    of = write_config(tmp_path / "changed", config("qwen3_6_27b", **changes))
    message = refusal(plan("-k", "7", "--gpu-mem", "140", "--weights-gib", "50", of=of))
    assert words in message
    assert message.count("\n") == 1


def test_no_target(plan, target, tmp_path):
    assert "--target is" in refusal(plan(*H200, of=tmp_path / "nothing"))
    doc = json.loads(plan(*H200, "--json", of=tmp_path / "nothing").stdout)
    assert doc["exit_code"] == 2
    assert "What to do: " in doc["error"]
    (target / "config.json").unlink()
    message = refusal(plan(*H200))
    assert "Allowed: a config.json, or a folder or repository with one" in message


def test_no_gpu_to_read_the_memory_of(plan):
    if has_gpu():
        pytest.skip("this machine has a GPU, whose memory is read")
    message = refusal(plan("-k", "7", "--platform", "cuda"))
    assert message.startswith("vllm-eagle-ext: --gpu-mem is missing. Allowed: GiB of one GPU; no GPU is")
    assert "What to do: state it, such as --gpu-mem 80" in message
    assert "or plan for --platform cpu, this machine's" in message


@pytest.mark.parametrize("slug", ["kimi_k2_5_mla", "kimi_k3_dspark"])
def test_a_draft_of_another_kind(plan, tmp_path, slug):
    checkpoint = next(c for c in published.published() if c.slug == slug)
    draft = published.materialise(checkpoint, tmp_path / "draft")
    message = refusal(plan(str(draft), *H200))
    assert "DRAFT" in message or "of the draft's config.json" in message


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
    message = refusal(plan(str(draft), *H200))
    assert f"{name} of '{draft}' is 'a Git LFS pointer, not the file itself'" in message
    (draft / name).unlink()
    assert "weights of the draft are missing. Allowed: .safetensors or" in refusal(
        plan(str(draft), *H200)
    )
