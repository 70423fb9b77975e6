"""`vllm-eagle check`, exit code 0: what is shown of a draft, and the line to paste."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.support.checkpoints import tiny_draft
from tests.support.drafts import BLOCK, valid_draft, write
from tests.support.layouts import in_hub_cache
from tests.unit.cli.output import serve_line
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.start import check as run


def test_a_draft_that_would_be_served(check, draft, target):
    result = check(draft)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith(str(draft))
    table = dict(re.findall(r"^ *(\w.*?)  +(\S.*?) *$", result.stdout, re.MULTILINE))
    assert table["family"] == "post-norm EAGLE-3, 1 llama layer, published format"
    assert table["aux layers"] == "inputs of [2, 3, 4] of 8"
    assert table["rule"].endswith(
        "name the layers whose output is read, which is the input of layer id + 1"
    )
    assert table["norms"] == "fc_norm (fc_norm), norm_output (norm_output)"
    assert table["fed back"] == "the normalised state"
    assert table["attention"] == "1 x full"
    assert table["vocabulary"] == "96, d2t as offsets of 128"
    assert table["rope"] == "theta 10000"
    assert table["positions"] == "512 in its config.json"
    assert "Would be served. Start it with:\n" in result.stdout
    ordered = check(draft, "--eagle-ext", '{"aux_layers": [3, 2, 4]}', "--quick").stdout
    assert "inputs of [3, 2, 4] of 8" in ordered  # as the blocks of fc lie
    speculative = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3}
    assert serve_line(result) == (str(target), {"--speculative-config": speculative})


def test_all_options_reach_the_serve_line(check, draft, target):
    options = {"aux_layers": "input", "norm_output": True}
    result = check(
        draft, "-k", "5", "--method", "eagle3", "--max-model-len", "256", "--revision", "v1.0",
        "--eagle-ext", json.dumps(options),
    )  # fmt: skip
    assert result.exit_code == 0
    assert serve_line(result)[1] == {
        "--speculative-config": {
            "method": "eagle3",
            "model": str(draft),
            "num_speculative_tokens": 5,
            "revision": "v1.0",
        },
        "--max-model-len": "256",
        "--additional-config": {"eagle_ext": options},
    }


@pytest.mark.parametrize("columns", [30, 40, 80])
def test_narrow_terminal(check, draft, columns):
    wide, narrow = check(draft), check(draft, columns=columns)
    assert narrow.exit_code == 0
    assert narrow.stdout.splitlines()[-1] == wide.stdout.splitlines()[-1]
    assert "…" not in narrow.stdout


@pytest.mark.promise("drafts that vLLM serves itself are passed through")
def test_a_draft_that_is_passed_through(check, tmp_path):
    result = check(tiny_draft(tmp_path / "draft", architectures=["K3DSparkModel"]), "--quick")
    assert result.exit_code == 3
    assert "Not a supported draft: not checked; plain vLLM loads it." in result.stdout
    assert "vllm serve" not in result.stdout
    assert "Would be" not in result.stdout


def test_a_plain_model_as_a_draft_model_is_passed_through(check, tmp_path):
    draft = tiny_draft(tmp_path / "draft", architectures=["LlamaForCausalLM"], model_type="olmo2")
    result = check(draft, "--method", "draft_model")
    assert result.exit_code == 0
    assert "Not a supported draft: not checked" in result.stdout
    assert "model_type" not in result.stdout  # the vLLM that is installed reads olmo2
    assert "vllm serve" not in result.stdout


@pytest.mark.parametrize(
    ("family", "changes", "runner"),
    [
        ("no_aux", {}, "0"),
        ("dflash", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}, "1"),
    ],
)
def test_serve_line_names_the_only_runner(check, tmp_path, family, changes, runner):
    draft = valid_draft(family)
    draft.config |= changes
    result = check(write(draft, tmp_path / "draft"))
    assert result.exit_code == 0, result.stdout
    assert "note runner_is_particular: model runner" in result.stdout
    assert serve_line(result, f"VLLM_USE_V2_MODEL_RUNNER={runner} ")


def test_serve_line_has_no_more_tokens_than_the_block(check, tmp_path):
    """Whatever the draft was trained for."""
    draft = valid_draft("dflash-speculators")
    methods = [{"proposal_type": "greedy", "speculative_tokens": BLOCK}]
    draft.config["speculators_config"]["proposal_methods"] = methods
    line = serve_line(check(write(draft, tmp_path / "draft")))[1]
    assert line["--speculative-config"]["num_speculative_tokens"] == BLOCK - 1


@pytest.fixture
def cached(tmp_path, draft, monkeypatch):
    """The folder `eagle3` of a repository in the hub's cache, on a machine without the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "repository"
    repository.mkdir()
    draft.rename(repository / "eagle3")
    return in_hub_cache(tmp_path / "cache", repository) / "eagle3"


def test_a_folder_of_a_repository_in_the_cache(check, tmp_path, cached):
    """vLLM takes it by its path; there is nothing to download, and nowhere to download it from."""
    arguments = ("owner/draft/eagle3", "--download-dir", str(tmp_path / "cache"))
    result = check(*arguments)
    assert result.exit_code == 0, result.stdout
    assert "hf download" not in result.stdout
    assert serve_line(result)[1]["--speculative-config"]["model"] == str(cached)
    said = json.loads(check(*arguments, "--json").stdout)
    assert (said["download"], said["command"]) == (None, result.stdout.splitlines()[-1])


def test_a_folder_of_a_repository_on_the_hub(check, tmp_path, cached, monkeypatch):
    """vLLM takes none, so that it is downloaded first."""
    read = run.read_draft_files
    there = lambda *given, **place: replace(read(*given, **place), folder=None)  # noqa: E731
    monkeypatch.setattr(run, "read_draft_files", there)
    arguments = ("owner/draft/eagle3", "--download-dir", str(tmp_path / "cache"))
    result = check(*arguments)
    assert result.exit_code == 0, result.stdout
    *_, download, _ = result.stdout.splitlines()
    assert download == "hf download owner/draft --include 'eagle3/*' --local-dir draft"
    assert serve_line(result)[1]["--speculative-config"]["model"] == "draft/eagle3"
    said = json.loads(check(*arguments, "--json").stdout)
    assert (said["download"], said["command"]) == (download, result.stdout.splitlines()[-1])


def test_the_target_that_a_speculators_draft_names(target, tmp_path):
    draft = valid_draft("speculators")
    draft.config["speculators_config"]["verifier"]["name_or_path"] = str(target)
    result = check_alone(write(draft, tmp_path / "draft"))
    assert result.exit_code == 0, result.stderr
    assert serve_line(result)[0] == str(target)
    del draft.config["speculators_config"]["verifier"]
    result = check_alone(write(draft, tmp_path / "nameless"))
    assert result.exit_code == 2
    assert "--target is missing. Allowed: a folder or hub repository; the config" in result.stderr


def check_alone(draft):
    arguments = ["check", str(draft), "--platform", "cuda"]
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, arguments)


def test_the_targets_revision(check, draft, target, monkeypatch):
    asked = []
    read = run.read_config

    def note(model, **place):
        asked.append((model, place.get("revision")))
        return read(model, **{**place, "revision": None})

    monkeypatch.setattr(run, "read_config", note)
    result = check(draft, "--target-revision", "v2")
    assert asked == [(str(target), "v2")]
    assert serve_line(result)[1]["--revision"] == "v2"


def test_a_value_that_begins_with_a_dash(check, draft):
    assert " --download-dir=-cache" in check(draft, "--download-dir", "-cache").stdout
