"""Nothing that a stranger's file says acts on a terminal, hides, or begins a line of the log."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.support.checkpoints import draft_config, draft_tensors, tiny_draft, write_draft, write_target
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.cli.terminal import console
from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.draft.sources import FolderSource, read_exactly
from vllm_eagle_ext.errors import OptionsError, SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.options import parse_options
from vllm_eagle_ext.printable import printable, shown
from vllm_eagle_ext.start.serve import usual_k

FORGED = "Would be served. Start it with:"
# Clears the screen and hides what follows, begins a line, goes back in one, turns the direction of
# what follows, hides in a word, ends a line for Unicode, and has no bytes.
MARKS = "\x1b[2J\x1b[8m", "\n", "\r", "\x9b8m", "\u202e", "\u2066", "\u200b", "\u2028", "\ud800", "\x7f"
TEXTS = [f"norm_{mark}{FORGED}" for mark in MARKS]
# In commands: all marks in one text, and a line that a text begins.
SAID = [f"norm_{''.join(MARKS)}{FORGED}", f"norm_\n{FORGED}"]
ENVIRONMENT = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def require_plain(output: str, *, forged: bool = True) -> None:
    assert not [line for line in output.split("\n") if not line.isprintable()]
    if forged:
        assert not [line for line in output.split("\n") if line.startswith(FORGED)]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_each_place_of_an_error_and_of_a_finding(text):
    parts = {"field": text, "value": text, "allowed": text, "remedy": text}
    error = SpeculativeConfigError(**parts, more=[text])
    assert all(line.isprintable() for line in str(error).split("\n"))
    assert str(error).count("\n") == 1  # that of `more`
    for problem in (Problem(**parts), Problem(field=text, value=text, message=text)):
        assert str(problem).isprintable()
        assert all(line.isprintable() for line in problem.details)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_each_line_of_the_log_is_one(text, vllm_log):
    logger = get_logger("vllm_eagle_ext.a_test")
    get_logger("vllm_eagle_ext.a_test")  # once more, as two modules of one name would
    logger.warning("said: %s", text)
    logger.warning(text + " 100%")  # noqa: G003 - a text with no arguments
    assert [record.getMessage().isprintable() for record in vllm_log.records] == [True, True]
    assert vllm_log.records[1].getMessage().endswith(" 100%")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk(tmp_path, more):
    draft, target = tiny_draft(tmp_path / "draft"), write_target(tmp_path / "target")
    words = ["check", str(draft), "--target", str(target), "--platform", "cuda", *more]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-c", "from vllm_eagle_ext.cli import app; app()", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "vllm-eagle-ext: the output cannot be written: [Errno 28] No space left on device"
    ]


def test_a_key_of_an_option_that_is_no_text():
    with pytest.raises(OptionsError, match="eagle_ext.5 is 1"):
        parse_options({"eagle_ext": {5: 1}})


@pytest.mark.parametrize("ranks", ["x", 0, 7, 1.5, True])
def test_ranks_of_a_draft_that_are_none(tmp_path, ranks):
    draft, target = tiny_draft(tmp_path / "draft"), write_target(tmp_path / "target", layer_types=5)
    words = ["check", str(draft), "--target", str(target), "--platform", "cpu", "--speculative"]
    asked = json.dumps({"draft_tensor_parallel_size": ranks})
    result = CliRunner(env=ENVIRONMENT).invoke(app, [*words, asked])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1


def test_the_printed_k_is_no_strangers_number(tmp_path):
    spec = SimpleNamespace(most_drafted=None, trained_k=2**31 - 1)
    assert usual_k(spec) == 3
    spec.trained_k = 7
    assert usual_k(spec) == 7


def test_a_file_that_became_shorter(tmp_path):
    source = FolderSource("draft", tmp_path)
    (tmp_path / "x").write_bytes(b"123")
    assert read_exactly(source, "x", 0, 3) == b"123"
    with pytest.raises(UnsupportedDraftError, match="shorter than before"):
        read_exactly(source, "x", 0, 4)


def test_long_texts_are_cut():
    assert len(shown("x" * 10_000_000)) < 2100
    assert len(str(SpeculativeConfigError(field="k" * 10**6, value=1, allowed="", remedy=""))) < 2300


def test_texts_of_people_stay_as_they_are():
    assert printable("Ünïcode ключ 鍵 ±") == "Ünïcode ключ 鍵 ±"


def drafts_that_say(text: str):
    """Configs with a text in each place that a table, a finding or an error shows."""
    rope = {"rope_type": text, "factor": 2.0}
    good = {"num_aux": 3, "post_norm": True}
    yield draft_config(**good, **{text: 2.5})
    yield draft_config(**good, **{text: 0})
    yield draft_config(**good, eagle_config={text: 2.5, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]})
    yield draft_config(**good, rope_scaling={"rope_type": "linear", "factor": 2.0, text: 1})
    yield draft_config(**good, rope_scaling=rope)
    yield draft_config(**good, quantization_config={"quant_method": text})
    yield draft_config(**good, quantization_config={"quant_method": "gptq", "dynamic": {text: 5}})
    yield draft_config(**good, architectures=[text])
    yield draft_config(**good, model_type=text)
    yield draft_config(**good, hidden_act=text)
    yield draft_config(
        **good, speculators_model_type=text, transformer_layer_config={"model_type": text}
    )
    yield draft_config(**good, gate_layout=text, attn_output_gate=True)
    yield draft_config(**good, layer_types=[text])
    yield draft_config(**good, projector_type=text, markov_head_type=text)
    yield draft_config(**good, num_hidden_layers=text)


@pytest.mark.parametrize("text", SAID, ids=["all marks", "a line"])
def test_check_of_every_place_of_a_config(tmp_path, text):
    target = write_target(tmp_path / "target")
    seen = False
    for number, config in enumerate(drafts_that_say(text)):
        draft = write_draft(tmp_path / f"{number}", config, draft_tensors(num_aux=3, post_norm=True))
        for more in ((), ("--all",), ("--json",)):
            arguments = ["check", str(draft), "--target", str(target), "--platform", "cuda", *more]
            result = CliRunner(env=ENVIRONMENT).invoke(app, arguments)
            assert isinstance(result.exception, SystemExit | None), result.exception
            require_plain(result.stdout + result.stderr, forged=result.exit_code != 0)
            seen = seen or printable(text) in result.stdout
    assert seen, "no place shows it"


@pytest.mark.parametrize("text", SAID, ids=["all marks", "a line"])
def test_check_and_plan_of_a_target(tmp_path, text):
    draft = tiny_draft(tmp_path / "draft")
    for changes in (
        {"architectures": [text]},
        {"model_type": text},
        {"torch_dtype": text},
        {"rope_scaling": {"rope_type": text}},
        {"hidden_act": text, text: 1},
        {"layer_types": [text] * 8},
    ):
        target = write_target(tmp_path / "target", **changes)
        for words in (
            ["check", str(draft), "--target", str(target), "--platform", "cpu"],
            ["plan", "--target", str(target), "-k", "3,4", "--gpu-mem", "80", "--vllm", "0.32"],
        ):
            result = CliRunner(env=ENVIRONMENT).invoke(app, words)
            assert isinstance(result.exception, SystemExit | None), result.exception
            require_plain(result.stdout + result.stderr, forged=result.exit_code != 0)


@pytest.mark.parametrize("name", ["\x1b[2J\nx", "\u202ex", "\udcff\udcfe", "it's \\ [bold]x[/bold]"])
def test_a_folders_name_is_shown(tmp_path, name):
    draft, target = tiny_draft(tmp_path / name), write_target(tmp_path / "target")
    for k in ("3", "100000"):  # served, and refused
        words = ["check", str(draft), "--target", str(target), "-k", k, "--platform", "cuda"]
        result = CliRunner(env=ENVIRONMENT).invoke(app, words)
        assert isinstance(result.exception, SystemExit | None), result.exception
        require_plain(result.stdout + result.stderr, forged=result.exit_code != 0)


@pytest.mark.parametrize("text", SAID, ids=["all marks", "a line"])
def test_names_of_tensors_and_files(tmp_path, text):
    target = write_target(tmp_path / "target")
    broken = tiny_draft(tmp_path / "header")
    raw = json.dumps({text: {"dtype": text, "shape": [1], "data_offsets": [0, 1]}}).encode()
    (broken / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    index = tiny_draft(tmp_path / "index")
    (index / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": text}}))
    for draft in (broken, index):
        arguments = ["check", str(draft), "--target", str(target), "--platform", "cuda"]
        result = CliRunner(env=ENVIRONMENT).invoke(app, arguments)
        assert result.exit_code == 2
        require_plain(result.stdout + result.stderr)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_the_console_itself(text, capsys):
    """Whatever else is printed with it, in tables and titles too."""
    from rich.table import Table

    shown_on = console()
    shown_on.print(text)
    table = Table(text, title=text, caption=text)
    table.add_row(text)
    table.add_row("[red]no markup[/red]")
    shown_on.print(table)
    output = capsys.readouterr().out
    require_plain(output)
    assert "[red]no markup[/red]" in output


def test_an_error_that_is_not_of_the_output_is_not_called_one(monkeypatch):
    """A connection that is refused names no file either."""

    def refuse() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("vllm_eagle_ext.cli.status.read_status", refuse)
    result = CliRunner().invoke(app, ["status"])
    assert isinstance(result.exception, ConnectionRefusedError)
    assert "cannot be written" not in result.output
