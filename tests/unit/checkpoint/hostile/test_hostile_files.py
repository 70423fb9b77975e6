"""Checkpoints that a stranger wrote to do harm: a clear refusal, at once, in little memory."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.checkpoints import tiny_draft
from tests.unit.checkpoint.hostile.breaks import WEIGHTS
from tests.unit.checkpoint.hostile.cases import REFUSED, SERVED
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError

SECONDS = 2
MEGABYTES = 200  # of the whole process


class TooSlow(BaseException):
    """No OSError and no Exception, which the package may handle."""


@contextmanager
def time_limit(seconds: float = SECONDS):
    def stop(*_):
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)  # one that waits takes no processor time
    started = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - started < seconds


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, name):
    break_it, words = REFUSED[name]
    break_it(tiny_draft(tmp_path / "draft"))
    with time_limit(), pytest.raises(UnsupportedDraftError) as refusal:
        read_draft_files(str(tmp_path / "draft"))
    message = str(refusal.value)
    assert words in message
    assert message.count("vllm-eagle-ext: ") == 1
    assert str(tmp_path / "draft") in message
    assert message.isprintable()
    assert len(message) < 1500


@pytest.mark.parametrize("name", SERVED)
def test_served(tmp_path, name):
    SERVED[name](tiny_draft(tmp_path / "draft"))
    with time_limit():
        files = read_draft_files(str(tmp_path / "draft"))
    assert files.tensors
    assert sum(map(len, files.values.values())) <= 16 * 2**20


IN_A_FRESH_PROCESS = """
import json, sys
from pathlib import Path

unpickled, opened = [], []

def watch(event, arguments):
    if event == "pickle.find_class":
        unpickled.append(arguments)
    elif event == "open" and str(arguments[0]).endswith((".bin", ".pt")):
        opened.append(str(arguments[0]))

sys.addaudithook(watch)

from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError

outcomes = {}
for folder in sys.stdin.read().splitlines():
    try:
        outcomes[Path(folder).name] = read_draft_files(folder).weights
    except UnsupportedDraftError:
        outcomes[Path(folder).name] = "refused"
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "outcomes": outcomes,
    "megabytes": int(status["VmHWM"].split()[0]) / 1024,  # ru_maxrss has the parent's in it
    "modules": [name for name in ("torch", "vllm", "numpy", "transformers") if name in sys.modules],
    "unpickled": unpickled,
    "opened": opened,
}))
"""


def test_all_in_a_fresh_process(tmp_path):
    """In one process, so that nothing piles up either."""
    draft = tiny_draft(tmp_path / "good")
    folders, expected = [], {"bin": "bin"}
    for name, break_it in {**{n: case[0] for n, case in REFUSED.items()}, **SERVED}.items():
        folders.append(Path(shutil.copytree(draft, tmp_path / name)))
        break_it(folders[-1])
        expected[name] = "refused" if name in REFUSED else "safetensors"
    folders.append(write_bomb(tmp_path / "bin", tmp_path / "marker"))
    result = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS], input="\n".join(map(str, folders)),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert report["outcomes"] == expected
    assert report["megabytes"] < MEGABYTES
    assert (report["modules"], report["unpickled"]) == ([], [])
    # Once: its first bytes tell whether weights lie there at all.
    assert report["opened"] == [str(tmp_path / "bin/pytorch_model.bin")]
    assert not (tmp_path / "marker").exists()


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def write_bomb(folder, marker):
    """A draft whose weights touch `marker` when they are unpickled."""
    (tiny_draft(folder) / WEIGHTS).unlink()
    for name in ("pytorch_model.bin", "model.pt", "mask_embedding.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb(marker)))
    return folder


def test_pickled_weights_are_not_opened(tmp_path):
    marker = tmp_path / "marker"
    folder = write_bomb(tmp_path / "draft", marker)
    assert read_draft_files(str(folder)).weights == "bin"
    assert not marker.exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert marker.exists(), "the bomb is a dud"
