"""The project's size is counted, and held below its limits."""

from __future__ import annotations

import subprocess

from tools.budget import excesses


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
