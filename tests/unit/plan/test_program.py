"""`vllm-eagle plan` as a program: its help, and how little it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.unit.plan.inputs import H200
from vllm_eagle_ext.cli import app


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_little_is_imported(target, options):
    script = (
        "import sys\n"
        "from vllm_eagle_ext.cli import app\n"
        "try:\n"
        f"    app({['plan', '--target', str(target), *H200, *options]!r})\n"
        "except SystemExit as exit:\n"
        "    heavy = {'torch', 'vllm', 'transformers', 'numpy', 'safetensors', 'huggingface_hub'}\n"
        "    print(exit.code, sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stderr == "0 []\n"


def test_help_names_the_exit_codes():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["plan", "--help"])
    assert result.exit_code == 0
    assert "Exits with 0 if a request fits for every K, and with 1 if for some K none does" in " ".join(
        result.stdout.split()
    )
