"""`vllm-eagle check` as a program: its help, its streams and how little it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.cli.output import serve_line
from vllm_eagle_ext.cli import app

SCRIPT = Path(sys.executable).with_name("vllm-eagle")


def test_help_names_the_exit_codes():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["check", "--help"])
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "with 1 if it would be refused, and with 2 if that cannot be told. It exits with 3 if" in said
    assert all(option in result.stdout for option in ("--target", "-k", "--eagle-ext", "--json"))


def test_completion_is_offered():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["--help"])
    assert "--install-completion" in result.stdout
    assert "--show-completion" in result.stdout


def run_script(*arguments):
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_script(draft, target, tmp_path):
    result = run_script("check", draft, "--target", target, "--quick")
    assert result.returncode == 3, result.stderr
    assert serve_line(result)[0] == str(target)
    result = run_script("check", tmp_path / "nothing", "--target", target)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("vllm-eagle-ext: ")


def test_script_into_a_pipe_writes_plain_text(without_norms, target):
    result = run_script("check", without_norms, "--target", target, "--quick")
    assert result.returncode == 1
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_little_is_imported(draft, target, options):
    """What makes it answer at once."""
    script = (
        "import sys\n"
        "from vllm_eagle_ext.cli import app\n"
        "try:\n"
        f"    app({['check', str(draft), '--target', str(target), '--quick', *options]!r})\n"
        "except SystemExit as exit:\n"
        "    heavy = {'torch', 'vllm', 'transformers', 'numpy', 'safetensors', 'huggingface_hub'}\n"
        "    print(exit.code, sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stderr == "3 []\n"
