"""The project's size is counted, and held below its limits."""

from __future__ import annotations

import subprocess

from tools.budget import excesses, figures


def test_what_is_above_is_named(tmp_path, capsys):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "long.py").write_text("x = 1\n" * 400)
    (folder / "notes.txt").write_text("not counted\n" * 900)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (above,) = excesses({"package": {"lines": 399, "kB": 3, "modules": 1}}, tmp_path)
    assert above.startswith("package: 400 of 399 lines: remove")
    assert capsys.readouterr().out.splitlines()[1:] == ["package: 3 of 3 kB", "package: 1 of 1 modules"]


def test_long_functions_are_counted_without_docstring_and_kernels(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    body = '    """Say\n    what\n    it does."""\n' + "    x = 1\n" * 60
    (folder / "a.py").write_text(
        f"def f():\n{body}\n@triton.jit(do_not_specialize=[])\ndef k():\n{body * 2}"
    )
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert figures("package", tmp_path)["lines of a function"] == 61
