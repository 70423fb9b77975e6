"""`vllm-eagle check` as a program: its help, its streams and how little it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.output import serve_line

SCRIPT = Path(sys.executable).with_name("vllm-eagle")


def run_script(*arguments):
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_script(draft, target, tmp_path):
    result = run_script("check", draft, "--target", target, "--quick")
    assert result.returncode == 3, result.stderr
    assert serve_line(result)[0] == str(target)
    result = run_script("check", tmp_path / "nothing", "--target", target)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("vllm-eagle-ext: ")


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
