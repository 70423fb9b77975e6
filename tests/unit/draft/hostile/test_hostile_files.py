"""Checkpoints that a stranger wrote to do harm: a clear refusal, at once, in little memory."""

from __future__ import annotations

import gc
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
from tests.support.drafts import inspect, valid_draft
from tests.unit.draft.hostile.cases import INDEX, REFUSED, SERVED, WEIGHTS, relink
from vllm_eagle_ext.draft import read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError

SECONDS = 2
MEGABYTES = 200  # of the whole process


class TooSlow(BaseException):
    """No Exception, which the package may handle."""


@contextmanager
def time_limit(seconds: float = SECONDS):
    def stop(*_):
        raise TooSlow

    gc.freeze()  # else the garbage collector walks what other tests left, at the cost of this one
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)  # one that waits takes no processor time
    started = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.unfreeze()
    assert time.process_time() - started < seconds


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, name):
    words, break_it = REFUSED[name]
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

from vllm_eagle_ext.draft import read_draft_files
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
    "modules": [name for name in ("torch", "vllm", "transformers") if name in sys.modules],
    "unpickled": unpickled,
    "opened": opened,
}))
"""


def test_all_in_a_fresh_process(tmp_path):
    """In one process, so that nothing piles up either."""
    draft = tiny_draft(tmp_path / "good")
    folders, expected = [], {"bin": "bin"}
    for name, break_it in {**{n: case[1] for n, case in REFUSED.items()}, **SERVED}.items():
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


def of_vllm(folder) -> set[str]:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return {
        Path(path).name
        for path in DefaultModelLoader(LoadConfig())._prepare_weights(
            str(folder), None, None, True, None
        )[1]
    }


def ours(folder) -> set[str]:
    return {header.file for header in read_draft_files(str(folder)).tensors.values()}


@pytest.mark.parametrize("index", [None, INDEX, "consolidated.safetensors.index.json"])
@pytest.mark.parametrize("name", ["consolidated.safetensors", "consolidated-1.safetensors"])
def test_consolidated_files_are_loaded_in_place_of_others(tmp_path, name, index):
    folder = tiny_draft(tmp_path / "draft")
    shutil.copy(folder / WEIGHTS, folder / name)
    if index:
        named = WEIGHTS if index == INDEX else name
        (folder / index).write_text(json.dumps({"weight_map": {"fc.weight": named}}))
    assert ours(folder) == of_vllm(folder) == {name}


def test_a_name_with_a_dot_first_is_left_out(tmp_path):
    folder = tiny_draft(tmp_path / "draft")
    (folder / f"._{WEIGHTS}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert ours(folder) == of_vllm(folder) == {WEIGHTS}
    (folder / WEIGHTS).rename(folder / f".{WEIGHTS}")
    with pytest.raises(UnsupportedDraftError, match="without any"):
        read_draft_files(str(folder))
    with pytest.raises(RuntimeError, match="Cannot find any model weights"):
        of_vllm(folder)


@pytest.mark.parametrize("metadata", [{"format": 5}, {"a": None}, [], "pt", 5, None, {"a": {}}])
def test_metadata_that_safetensors_refuses(tmp_path, metadata):
    from safetensors import SafetensorError, safe_open

    folder = tiny_draft(tmp_path / "draft")
    raw = json.dumps({"__metadata__": metadata, "x": {
        "dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()  # fmt: skip
    (folder / WEIGHTS).write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    try:
        with safe_open(folder / WEIGHTS, "pt"):
            pass
    except SafetensorError:
        with pytest.raises(UnsupportedDraftError, match="__metadata__"):
            read_draft_files(str(folder))
    else:
        assert ours(folder)


def test_warnings_have_an_end(tmp_path):
    draft = valid_draft("native")
    draft.config |= {f"norm_{number}": 2.5 for number in range(20_000)}
    with time_limit():
        fired = inspect(draft, tmp_path).findings
    assert len(fired) < 60
    assert "number of further findings of this rule is 19950" in str(fired[-1].problem)


def test_links_of_the_hub_cache(tmp_path):
    """snapshots/<commit>/<file> -> ../../blobs/<hash>"""
    repository = tmp_path / "models--owner--draft"
    draft, snapshot = tiny_draft(repository / "blobs"), repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in draft.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert "fc.weight" in read_draft_files(str(snapshot)).tensors
    (tmp_path / "draft").symlink_to(snapshot)
    assert "fc.weight" in read_draft_files(str(tmp_path / "draft")).tensors


def test_links_out_of_the_hub_cache(tmp_path):
    snapshot = tmp_path / "models--owner--draft" / "snapshots" / ("0" * 40)
    relink(tiny_draft(snapshot) / "config.json", "/etc/passwd")
    with pytest.raises(UnsupportedDraftError, match="a file inside the checkpoint's folder"):
        read_draft_files(str(snapshot))


def test_name_of_a_file_that_clears_the_terminal(tmp_path):
    (tiny_draft(tmp_path) / "\x1b[2J.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedDraftError, match=r"x1b\[2J.safetensors'") as refusal:
        read_draft_files(str(tmp_path))
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(("method", "what"), [("open", r"config\.json"), ("iterdir", "the folder")])
def test_what_may_not_be_read(tmp_path, monkeypatch, method, what):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    tiny_draft(tmp_path)
    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(UnsupportedDraftError, match=rf"{what}.*'unreadable'.*not for you"):
        read_draft_files(str(tmp_path))
