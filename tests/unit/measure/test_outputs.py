"""Files that a measurement leaves: whole or not at all, and known to be writable before it begins."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.outputs import require_writable, write_whole


def test_written_and_written_over(tmp_path):
    for text in ("one", "another"):
        require_writable(tmp_path / "found.json")
        write_whole(tmp_path / "found.json", text)
        assert (tmp_path / "found.json").read_text() == text + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


def small_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize("before", ["what was there\n", None])
def test_no_room_leaves_what_was_there(tmp_path, before):
    """A limit of a file's size stands for a full disk: a write ends halfway."""
    path = tmp_path / "found.json"
    if before:
        path.write_text(before)
    script = (
        "import pathlib, sys; from vllm_eagle_ext.measure.outputs import write_whole\n"
        "write_whole(pathlib.Path(sys.argv[1]), 'x' * 10_000)"
    )
    command = [sys.executable, "-c", script, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=small_files)
    assert "OSError" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == (["found.json"] if before else [])
    assert (path.read_text() if before else None) == before


def test_links_and_pipes_are_written_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    for name in ("link", "pipe"):
        require_writable(tmp_path / name)
        write_whole(tmp_path / name, "text")
    reader.join(20)
    assert read == ["text\n"]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text\n"


def test_what_cannot_be_written_is_said_before(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "missing/found.json", tmp_path / "file/found.json"):
        with pytest.raises(SpeculativeConfigError, match="--out") as refused:
            require_writable(path)
        assert str(path) in str(refused.value)
    require_writable(tmp_path / "new.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
