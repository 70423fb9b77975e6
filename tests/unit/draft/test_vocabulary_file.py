"""The file of token ids: what it may hold, and what is said of one that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vllm_eagle_ext.draft import vocabulary
from vllm_eagle_ext.draft.vocabulary import read_vocabulary_file
from vllm_eagle_ext.errors import OptionsError


def test_ids_are_read(tmp_path):
    (tmp_path / "ids.json").write_text("[0, 3, 7]\n")
    assert read_vocabulary_file(str(tmp_path / "ids.json")) == (0, 3, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("{}", "it holds no list"),
        ("[]", "or an empty one"),
        ("[1, 1]", "1 comes after 1"),
        ("[2, 1]", "1 comes after 2"),
        ("[-1, 2]", "'-1' is no token id"),
        ("[1, true]", "'True' is no token id"),
        ("[1, 2.0]", "'2.0' is no token id"),
        ('["\\u001b31m"]', "no token id"),
        ("[1, [2]]", "lists and objects"),
        (f"[1, {'9' * 5000}]", "an integer of 5000 digits"),
        ("[" * 100_000, "lists and objects"),
        ("\x00\xff", "Expecting value"),
    ],
)
def test_refused(tmp_path, text, words):
    file = tmp_path / "ids.json"
    file.write_text(text)
    with pytest.raises(OptionsError) as refused:
        read_vocabulary_file(str(file))
    said = str(refused.value)
    assert words in said
    assert "additional_config.eagle_ext.draft_vocabulary is" in said
    assert "vllm-eagle vocabulary" in said
    assert said.isprintable()


def test_it_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "_FILE_LIMIT", 20)
    (tmp_path / "ids.json").write_text("[1, 2, 3, 4, 5, 6, 7]")
    with pytest.raises(OptionsError, match="longer than 20 bytes"):
        read_vocabulary_file(str(tmp_path / "ids.json"))


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="the kernel's log is root's")
def test_a_file_of_the_kernel_is_not_waited_for():
    """It is a regular file, and a read of it waits for the next line of the log."""
    command = (
        "from vllm_eagle_ext.draft.vocabulary import read_vocabulary_file as read;read('/proc/kmsg')"
    )
    result = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert "OptionsError: vllm-eagle-ext: additional_config.eagle_ext.draft_vocabulary" in result.stderr


def test_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        with pytest.raises(OptionsError, match="no such file"):
            read_vocabulary_file(str(tmp_path / name))
