from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support import published
from tests.support.checkpoints import draft_config, draft_tensors, tiny_draft, write_draft, write_target
from tests.support.drafts import BLOCK, valid_draft, write
from tests.support.layouts import in_hub_cache
from vllm_eagle_ext.cli import app

SCRIPT = Path(sys.executable).with_name("vllm-eagle")
KEYS = {"draft", "target", "spec", "left_to_vllm", "findings", "command", "exit_code"}


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


@pytest.fixture
def draft(tmp_path):
    return tiny_draft(tmp_path / "draft")


@pytest.fixture
def check(target):
    """`vllm-eagle check` against the tiny target."""

    def run(draft, *options, columns=200):
        arguments = ["check", str(draft), "--target", str(target), *options]
        environment = {"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
        return CliRunner(env=environment).invoke(app, arguments)

    return run


def serve_line(result, forced=""):
    """The words of the line to paste, behind `forced`; the values of JSON options are parsed."""
    words = shlex.split(result.stdout.splitlines()[-1].removeprefix(forced))
    assert words[:2] == ["vllm", "serve"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    parsed = ("--speculative-config", "--additional-config")
    return words[2], {name: json.loads(v) if name in parsed else v for name, v in options.items()}


# exit code 0


def test_a_draft_that_would_be_served(check, draft, target):
    result = check(draft)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith(str(draft))
    table = dict(re.findall(r"^ *(\w.*?)  +(\S.*?) *$", result.stdout, re.MULTILINE))
    assert table["family"] == "post-norm EAGLE-3, 1 llama layer, published format"
    assert table["boundaries"] == "[2, 3, 4] of 8"
    assert table["rule"].endswith("name the layers whose output is read, boundary = id + 1")
    assert table["norms"] == "fc_norm (fc_norm), norm_output (norm_output)"
    assert table["fed back"] == "the normalised state"
    assert table["attention"] == "1 x full"
    assert table["vocabulary"] == "96, d2t as offsets of 128"
    assert table["rope"] == "theta 10000"
    assert table["trained on"] == "512 positions"
    assert "Would be served. Start it with:\n" in result.stdout
    speculative = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3}
    assert serve_line(result) == (str(target), {"--speculative-config": speculative})


def test_all_options_reach_the_serve_line(check, draft, target):
    options = {"aux_layers": "boundary", "norm_output": True}
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


def test_options_decide_what_the_draft_is(check, draft):
    result = check(draft, "--eagle-ext", '{"aux_layers": "boundary", "norm_output": false}')
    assert "[1, 2, 3] of 8" in result.stdout
    assert "the raw state" in result.stdout


def test_serve_line_is_quoted_for_the_shell(check, tmp_path, target):
    draft = tiny_draft(tmp_path / 'it\'s a $draft & "more"')
    moved = target.rename(tmp_path / "the target")
    result = check(draft, "--target", str(moved))
    model, options = serve_line(result)
    assert model == str(moved)
    assert options["--speculative-config"]["model"] == str(draft)


@pytest.mark.parametrize("columns", [30, 40, 80])
def test_narrow_terminal(check, draft, columns):
    wide, narrow = check(draft), check(draft, columns=columns)
    assert narrow.exit_code == 0
    assert narrow.stdout.splitlines()[-1] == wide.stdout.splitlines()[-1]
    assert "…" not in narrow.stdout


def test_values_of_a_narrow_table_are_folded(check, draft):
    narrow = check(draft, columns=40).stdout.split("Would be served")[0]
    values = "".join(line[18:].strip() for line in narrow.splitlines())
    assert "nestedineagle_confignamethelayers" in values.replace(" ", "")


def test_warnings_do_not_refuse(check, tmp_path):
    result = check(tiny_draft(tmp_path / "draft", eagle_config=None))
    assert result.exit_code == 0
    assert "warning aux_layers_are_stated: eagle_aux_hidden_state_layer_ids" in result.stdout
    assert "  to do:   if acceptance is low" in result.stdout
    assert "vllm serve" in result.stdout


@pytest.mark.parametrize(
    ("slug", "family", "method", "k", "parallel"),
    [
        ("yuhuili_llama31_8b", "EAGLE-3", "eagle3", 3, None),
        ("kimi_k2_5_mla", "MLA EAGLE-3", "eagle3", 3, None),
        ("speculators_p_eagle", "P-EAGLE", "eagle3", None, True),
        ("zlab_qwen3_8b", "DFlash", "dflash", 15, None),
    ],
)
def test_families(check, tmp_path, slug, family, method, k, parallel):
    checkpoint = next(found for found in published.published() if found.slug == slug)
    folder = published.materialise(checkpoint, tmp_path / "published")
    published.write_target(checkpoint, tmp_path / "target")
    result = check(folder)
    assert result.exit_code == 0, result.stdout
    assert f"{family}, " in result.stdout
    forced = "VLLM_USE_V2_MODEL_RUNNER=0 " if parallel else ""
    speculative = serve_line(result, forced)[1]["--speculative-config"]
    assert result.stdout.splitlines()[-1].startswith(f"{forced}vllm serve ")
    assert speculative["method"] == method
    assert speculative.get("parallel_drafting") is parallel
    assert speculative["num_speculative_tokens"] >= 1
    assert k is None or speculative["num_speculative_tokens"] == k


def test_a_draft_that_is_left_to_vllm(check, tmp_path):
    result = check(tiny_draft(tmp_path / "draft", architectures=["K3DSparkModel"]))
    assert result.exit_code == 0
    assert "Not one of this package's drafts: vLLM serves it as it reads it" in result.stdout
    assert "vllm serve" not in result.stdout
    assert "Would be" not in result.stdout


def test_a_plain_model_as_a_draft_model_is_left_to_vllm(check, tmp_path):
    draft = tiny_draft(tmp_path / "draft", architectures=["LlamaForCausalLM"], model_type="olmo2")
    result = check(draft, "--method", "draft_model")
    assert result.exit_code == 0
    assert "Not one of this package's drafts" in result.stdout
    assert "warning model_type_is_usual: model_type" in result.stdout
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


def test_a_draft_in_the_hub_cache(check, tmp_path, draft, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    in_hub_cache(tmp_path / "cache", draft)
    result = check("owner/draft", "--download-dir", str(tmp_path / "cache"))
    assert result.exit_code == 0
    assert serve_line(result)[1]["--speculative-config"]["model"] == "owner/draft"


# exit code 1


@pytest.fixture
def without_norms(tmp_path):
    """A draft whose config asks for norms that its weights lack."""
    tensors = draft_tensors(num_aux=3, post_norm=False)
    return write_draft(tmp_path / "draft", draft_config(num_aux=3, post_norm=True), tensors)


@pytest.fixture
def contradictory(tmp_path):
    """A draft that an engine would start with."""
    config = draft_config(num_aux=3, post_norm=True)
    config["eagle_config"]["norm_output"] = False
    return write_draft(tmp_path / "draft", config, draft_tensors(num_aux=3, post_norm=True))


def test_a_draft_that_would_be_refused(check, without_norms):
    result = check(without_norms)
    assert result.exit_code == 1
    assert "post-norm EAGLE-3, 1 llama layer" in result.stdout
    assert "error fc_norms_match_their_flag: fc_norm tensors of the draft is []" in result.stdout
    assert "  allowed: fc_norm.0 to fc_norm.2, one per aux layer" in result.stdout
    assert "  to do:   check that config.json belongs to the weights" in result.stdout
    count = result.stdout.count("\nerror ")
    assert f"Would be refused: {count} error" in result.stdout
    assert "vllm serve" not in result.stdout
    assert "It would run with" not in result.stdout


def test_an_error_that_an_engine_would_start_with(check, contradictory):
    result = check(contradictory)
    assert result.exit_code == 1
    assert "error flags_agree: norm_output at " in result.stdout
    assert 'It would run with {"eagle_ext": {"strict": false}}' in result.stdout


def test_strict_false_makes_a_warning_of_it(check, contradictory):
    result = check(contradictory, "--eagle-ext", '{"strict": false}')
    assert result.exit_code == 0
    assert "warning flags_agree: " in result.stdout
    assert serve_line(result)[1]["--additional-config"] == {"eagle_ext": {"strict": False}}


def test_errors_come_first(check, tmp_path):
    draft = tiny_draft(tmp_path / "draft", eagle_config=None, norm_output=False, draft_vocab_size=95)
    shown = check(draft).stdout
    kinds = [line.split()[0] for line in shown.splitlines() if line.startswith(("error ", "warning "))]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"error", "warning"}


def test_a_config_that_says_too_little(check, tmp_path):
    config = draft_config(num_aux=3, post_norm=True)
    del config["rms_norm_eps"]
    result = check(write_draft(tmp_path / "draft", config, draft_tensors(num_aux=3, post_norm=True)))
    assert result.exit_code == 1
    assert (
        "error config_is_well_formed: rms_norm_eps of the draft's config.json is None" in result.stdout
    )


def test_method_of_another_draft(check, draft):
    result = check(draft, "--method", "dflash")
    assert result.exit_code == 1
    assert """to do:   write "method": "eagle3\"""" in result.stdout


def test_more_tokens_than_the_block(check, tmp_path):
    checkpoint = next(found for found in published.published() if found.slug == "zlab_qwen3_8b")
    folder = published.materialise(checkpoint, tmp_path / "published")
    published.write_target(checkpoint, tmp_path / "target")
    result = check(folder, "-k", "16")
    assert result.exit_code == 1
    assert "error k_is_within_the_block: num_speculative_tokens is 16" in result.stdout


def test_target_of_another_width(check, draft, target):
    write_target(target, hidden_size=128)
    assert check(draft).exit_code == 1


# exit code 2


def refusal(result):
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr


def test_no_draft(check, tmp_path):
    assert f"speculative_config.model is '{tmp_path / 'nothing'}'" in refusal(
        check(tmp_path / "nothing")
    )


def test_damaged_draft(check, draft):
    os.truncate(draft / "model.safetensors", 100)
    message = refusal(check(draft))
    assert "model.safetensors of" in message
    assert "What to do: download the file again" in message


def test_draft_without_a_config(check, draft):
    (draft / "config.json").unlink()
    assert "a draft checkpoint with a config.json" in refusal(check(draft))


def test_no_target(check, draft, target):
    shutil.rmtree(target)
    assert f"the target is '{target}'" in refusal(check(draft))


def test_target_without_a_size(check, draft, target):
    write_target(target, num_hidden_layers=None)
    assert "num_hidden_layers of the target's config.json is None" in refusal(check(draft))


def test_message_is_one_line_on_a_narrow_terminal(check, tmp_path):
    assert refusal(check(tmp_path / "nothing", columns=40)).count("\n") == 1


def test_draft_that_is_on_no_hub(check, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal(check("owner/draft", "--download-dir", str(tmp_path)))
    assert "switched off by HF_HUB_OFFLINE" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "a JSON object is needed"),
        ("[]", "a JSON object is needed"),
        ("7", "a JSON object is needed"),
        ('{"no_such_option": 1}', "additional_config.eagle_ext.no_such_option is 1"),
        ('{"aux_layers": "sideways"}', "additional_config.eagle_ext.aux_layers is 'sideways'"),
        ('{"strict": "yes"}', "true or false"),
    ],
)
def test_bad_options(check, draft, text, words):
    assert words in refusal(check(draft, "--eagle-ext", text))


@pytest.mark.parametrize(
    "options",
    [["-k", "0"], ["-k", "-1"], ["-k", "many"], ["--max-model-len", "0"], ["--no-such-option"]],
)
def test_bad_arguments(check, draft, options):
    assert options[0] in refusal(check(draft, *options))


def test_target_is_asked_for(draft):
    result = CliRunner().invoke(app, ["check", str(draft)])
    assert "--target" in refusal(result)


# --json


def test_json_of_a_draft_that_would_be_served(check, draft, target):
    result = check(draft, "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"] == 0
    assert said.keys() == KEYS
    assert (said["draft"], said["target"]) == (str(draft), str(target))
    assert said["spec"]["family"] == "post-norm"
    assert said["spec"]["aux_layers"]["boundaries"] == [2, 3, 4]
    assert (said["left_to_vllm"], said["findings"]) == (False, [])
    assert said["command"] == check(draft).stdout.splitlines()[-1]


def test_json_of_a_draft_that_would_be_refused(check, without_norms):
    result = check(without_norms, "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"] == 1
    assert said.keys() == KEYS
    assert said["command"] is None
    finding = next(f for f in said["findings"] if f["rule"] == "fc_norms_match_their_flag")
    assert finding.keys() == {"rule", "severity", "can_run", "field", "value", "allowed", "remedy"}
    assert (finding["severity"], finding["value"]) == ("error", [])


def test_json_of_a_draft_that_cannot_be_made_out(check, tmp_path):
    result = check(tiny_draft(tmp_path / "draft", hidden_size="wide"), "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"] == 1
    assert said.keys() == KEYS
    assert said["spec"] is None
    assert [finding["rule"] for finding in said["findings"]] == ["config_is_well_formed"]


def test_json_of_a_draft_that_is_left_to_vllm(check, tmp_path):
    draft = tiny_draft(tmp_path / "draft", architectures=["K3DSparkModel"])
    said = json.loads(check(draft, "--json").stdout)
    assert said.keys() == KEYS
    assert (said["left_to_vllm"], said["spec"], said["exit_code"]) == (True, None, 0)
    assert said["command"] is None


@pytest.mark.parametrize("slug", ["yuhuili_llama31_8b", "kimi_k2_5_mla", "zlab_qwen3_8b"])
def test_json_of_families(check, tmp_path, slug):
    checkpoint = next(found for found in published.published() if found.slug == slug)
    folder = published.materialise(checkpoint, tmp_path / "published")
    published.write_target(checkpoint, tmp_path / "target")
    said = json.loads(check(folder, "--json").stdout)
    assert said["spec"]["family"] == checkpoint.expect["family"]


def test_json_of_what_cannot_be_read(check, tmp_path, draft):
    for result in (
        check(tmp_path / "nothing", "--json"),
        check(draft, "--json", "--eagle-ext", '{"x": 1}'),
    ):
        said = json.loads(result.stdout)
        assert result.exit_code == said["exit_code"] == 2
        assert said.keys() == {"error", "exit_code"}
        assert "What to do: " in said["error"]
        assert result.stderr == ""


# the program


def test_help_names_the_exit_codes():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["check", "--help"])
    assert result.exit_code == 0
    assert "Exits with 0 if it will be, with 1 if it would be refused, with 2 if it cannot be read" in (
        result.stdout
    )
    assert all(option in result.stdout for option in ("--target", "-k", "--eagle-ext", "--json"))


def test_completion_is_offered():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["--help"])
    assert "--install-completion" in result.stdout
    assert "--show-completion" in result.stdout


def run_script(*arguments):
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_script(draft, target, tmp_path):
    result = run_script("check", draft, "--target", target)
    assert result.returncode == 0, result.stderr
    assert serve_line(result)[0] == str(target)
    result = run_script("check", tmp_path / "nothing", "--target", target)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("vllm-eagle-ext: ")


def test_script_into_a_pipe_writes_plain_text(without_norms, target):
    result = run_script("check", without_norms, "--target", target)
    assert result.returncode == 1
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_little_is_imported(draft, target, options):
    """What makes it answer at once."""
    script = (
        "import sys\n"
        "from vllm_eagle_ext.cli import app\n"
        "try:\n"
        f"    app({['check', str(draft), '--target', str(target), *options]!r})\n"
        "except SystemExit as exit:\n"
        "    heavy = {'torch', 'vllm', 'transformers', 'numpy', 'safetensors', 'huggingface_hub'}\n"
        "    print(exit.code, sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stderr == "0 []\n"
