"""`vllm-eagle check`, exit code 2: what cannot be read, and arguments that nobody can mean."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from tests.unit.cli.output import refusal
from vllm_eagle_ext.cli import app


def test_no_draft_on_a_narrow_terminal(check, tmp_path):
    message = refusal(check(missing := tmp_path / "nothing", columns=40))
    assert f"DRAFT is '{missing}'" in message
    assert message.count("\n") == 1


def test_damaged_draft(check, draft):
    os.truncate(draft / "model.safetensors", 100)
    message = refusal(check(draft))
    assert "model.safetensors of" in message
    assert "What to do: download the file again" in message


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize(
    ("content", "value", "remedy"),
    [
        (LFS, "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
        ("<!DOCTYPE html><html><body>", "an HTML page, not a checkpoint", "hf download"),
        ("<html>\n<head>", "an HTML page, not a checkpoint", "hf download"),
        ("\n" * 40 + "<!doctype html>", "an HTML page, not a checkpoint", "hf download"),
        ("\ufeff\r\n <html>", "an HTML page, not a checkpoint", "hf download"),
    ],
    ids=["lfs", "doctype", "html", "blank_lines", "byte_order_mark"],
)
def test_what_lies_in_a_files_place(check, draft, file, content, value, remedy):
    (draft / file).write_text(content)
    message = refusal(check(draft))
    assert f"{file} of '{draft}' is '{value}'" in message
    assert remedy in message.split("What to do: ")[1]
    assert "header claims" not in message


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("content", "value"),
    [
        (LFS, "a Git LFS pointer, not the file itself"),
        ('{"error": "Repository not found"}', "a JSON text, not weights"),
    ],
    ids=["lfs", "json"],
)
def test_what_lies_in_the_place_of_weights(check, draft, file, content, value):
    (draft / "model.safetensors").unlink()
    (draft / file).write_text(content)
    assert f"{file} of '{draft}' is '{value}'" in refusal(check(draft))


def test_another_text_is_no_safetensors_file(check, draft):
    (draft / "model.safetensors").write_text("Entry not found, at least not here")
    assert "(it is no safetensors file: its header claims" in refusal(check(draft))


def test_a_pointer_in_place_of_the_tokenizer(check, draft, target):
    (draft / "tokenizer.json").write_text(LFS)
    (target / "tokenizer.json").write_text(LFS)
    result = check(draft)
    assert result.exit_code == 1
    assert "the draft's is a Git LFS pointer, not the file itself: run `git lfs pull`" in result.stdout


def test_a_target_of_pointers(check, draft, target):
    (target / "model-00001-of-00002.safetensors").write_text(LFS)
    message = refusal(check(draft))
    assert f"model-00001-of-00002.safetensors of '{target}' is 'a Git LFS pointer" in message


@pytest.mark.parametrize(
    "options",
    [["-k", "0"], ["-k", "-1"], ["-k", "many"], ["--max-model-len", "0"], ["--no-such-option"]],
)
def test_bad_arguments(check, draft, options):
    assert options[0] in refusal(check(draft, *options))


@pytest.mark.parametrize("command", ["check", "plan", "verify"])
def test_a_draft_in_the_targets_place(command, target, draft):
    """The arguments may have changed places."""
    words = [command, str(target), "--target", str(draft), "-k", "3"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"--target is '{draft}'" in result.stderr
    assert "['LlamaForCausalLMEagle3']" in result.stderr
    assert "swap DRAFT and --target" in result.stderr


@pytest.mark.parametrize("command", ["check", "verify"])
def test_a_slip_in_a_folders_name(command, target, draft):
    """Said before a tokenizer is looked for, with the folder that was meant."""
    for words in (
        [str(draft) + "t", "--target", str(target)],
        [str(draft), "--target", str(target) + "x"],
    ):
        result = CliRunner().invoke(app, [command, *words])
        assert result.exit_code == 2
        meant = target if words[0] == str(draft) else draft
        assert f"did you mean {meant}?" in result.stderr
        assert "no such folder" in result.stderr
