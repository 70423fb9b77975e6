"""The project's size is counted, and held below its limits."""

from __future__ import annotations

import subprocess

from tools.budget import excesses


def test_what_is_above_is_named(tmp_path, capsys):
    """A function counts without its docstring, a kernel of Triton's as none."""
    folder = tmp_path / "package"
    folder.mkdir()
    body = '    """Say\n    what\n    it does."""\n' + "    x = 1\n" * 60
    kernel = f"@triton.jit(do_not_specialize=[])\ndef k():\n{body}{body}"
    (folder / "long.py").write_text(f"def f():\n{body}\n{kernel}")
    (folder / "notes.txt").write_text("not counted\n" * 900)
    for words in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    limits = {"lines": 192, "kB": 2, "modules": 1, "lines of a module": 193, "lines of a function": 60}
    lines, function = excesses({"package": limits}, tmp_path)
    assert lines.startswith("package: 193 of 192 lines: remove")
    assert function.startswith("package: 61 of 60 lines of a function: remove")
    assert "package: 2 of 2 kB" in capsys.readouterr().out.splitlines()
