"""Checkpoints that a stranger wrote to do harm: a clear refusal, at once, in little memory."""

from __future__ import annotations

import json
import os
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
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.checkpoint.files import JSON_LIMIT
from vllm_eagle_ext.checkpoint.headers import HEADER_LIMIT
from vllm_eagle_ext.errors import UnsupportedDraftError

SECONDS = 2
MEGABYTES = 200  # of the whole process
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"

REFUSED = {}  # name -> (what breaks a good draft, words of the message)
SERVED = {}  # name -> what a good draft survives


def refused(words):
    def register(break_it):
        REFUSED[break_it.__name__] = break_it, words
        return break_it

    return register


def served(break_it):
    SERVED[break_it.__name__] = break_it
    return break_it


# safetensors: lengths


def write_weights(folder, header, data=b"", *, length=None):
    """`header` as bytes or as the object that they spell; `length` is what the file claims."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(raw) if length is None else length
    (folder / WEIGHTS).write_bytes(claimed.to_bytes(8, "little") + raw + data)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def fill(unit, size):
    return unit * (size // len(unit))


def truncate(at, words):
    def truncated(folder):
        os.truncate(folder / WEIGHTS, at if at >= 0 else (folder / WEIGHTS).stat().st_size + at)

    truncated.__name__ = f"truncated_at_{at}"
    refused(words)(truncated)


for cut in range(8):
    truncate(cut, "shorter than 8 bytes")
for cut in (8, 9, 500, 1000):
    truncate(cut, "its header claims")
for cut in (2000, -1000, -1):
    truncate(cut, "its header describes")


@refused("its header describes")
def truncated_after_the_header(folder):
    length = int.from_bytes((folder / WEIGHTS).read_bytes()[:8], "little")
    os.truncate(folder / WEIGHTS, 8 + length)


@refused("its header describes")
def trailing_bytes(folder):
    write_weights(folder, {"a": entry()}, b"12345")


@refused("its header claims 9223372036854775808 bytes")
def length_of_2_to_the_63(folder):
    write_weights(folder, b"{}", length=2**63)


@refused("its header claims 18446744073709551615 bytes")
def length_of_all_ones(folder):
    write_weights(folder, b"{}", length=2**64 - 1)


@refused("its header claims 1099511627776 bytes")
def length_of_2_to_the_40(folder):
    write_weights(folder, b"{}", length=2**40)


@refused("its header claims 3 bytes, the file has 10")
def length_of_one_byte_too_many(folder):
    write_weights(folder, b"{}", length=3)


@refused("its header cannot be read")
def length_of_none(folder):
    write_weights(folder, b"{}", length=0)


@refused(f"more than the {HEADER_LIMIT} that are read")
def header_above_the_limit(folder):
    write_weights(folder, b"{}" + b" " * (HEADER_LIMIT - 1))


@refused("up to here the headers have more than")
def headers_of_many_shards(folder):
    write_weights(folder, b"{}" + b" " * (HEADER_LIMIT // 4))
    for number in range(8):
        shutil.copy(folder / WEIGHTS, folder / f"{number}.safetensors")


# safetensors: ranges


@refused("'b' overlap others or leave a gap")
def overlap(folder):
    write_weights(folder, {"a": entry(), "b": entry(offsets=(3, 7))}, b"1234567")


@refused("'b' overlap others or leave a gap")
def same_range_twice(folder):
    write_weights(folder, {"a": entry(), "b": entry()}, b"1234")


@refused("'b' overlap others or leave a gap")
def gap_between(folder):
    write_weights(folder, {"a": entry(), "b": entry(offsets=(5, 9))}, b"123456789")


@refused("'a' overlap others or leave a gap")
def gap_before(folder):
    write_weights(folder, {"a": entry(offsets=(1, 5))}, b"12345")


@refused("'b' overlap others or leave a gap")
def end_before_begin(folder):
    write_weights(folder, {"a": entry(), "b": entry(offsets=(4, 0))}, b"1234")


@refused("its header describes")
def end_behind_the_file(folder):
    write_weights(folder, {"a": entry(shape=[2**40], offsets=(0, 2**40))}, b"1234")


@refused("greater than or equal to 0")
def negative_begin(folder):
    write_weights(folder, {"a": entry(offsets=(-4, 0))})


@refused("'a' of shape [5] and U8 has 4 bytes")
def shape_of_other_bytes(folder):
    write_weights(folder, {"a": entry(shape=[5])}, b"1234")


@refused("greater than or equal to 0")
def negative_shape(folder):
    write_weights(folder, {"a": entry(shape=[-2, -2])}, b"1234")


@refused("'a' of shape [4611686018427387905, 4] and U8 has 4 bytes")
def shape_that_overflows(folder):
    """In 64 bits its product is 4."""
    write_weights(folder, {"a": entry(shape=[2**62 + 1, 4])}, b"1234")


@refused("at most 8 items")
def shape_of_many_dimensions(folder):
    """The product would take a minute."""
    header = b'{"a": {"dtype": "U8", "data_offsets": [0, 4], "shape": [%s1]}}'
    write_weights(folder, header % fill(b"999999999,", HEADER_LIMIT - 100), b"1234")


@refused("an integer of 4000 digits")
def shape_of_many_digits(folder):
    header = b'{"a": {"dtype": "U8", "data_offsets": [0, 4], "shape": [%s1]}}'
    write_weights(folder, header % fill(b"9" * 4000 + b",", HEADER_LIMIT - 100), b"1234")


@refused("an integer of 100000 digits")
def offset_of_many_digits(folder):
    header = b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, %s]}}'
    write_weights(folder, header % (b"9" * 100_000), b"1234")


@refused("valid integer")
def shape_of_floats(folder):
    write_weights(folder, {"a": entry(shape=[4.0])}, b"1234")


@refused("valid integer")
def shape_of_booleans(folder):
    write_weights(folder, {"a": entry(shape=[True], offsets=(0, 1))}, b"1")


@refused("dtype 'F128', which safetensors does not know")
def unknown_dtype(folder):
    write_weights(folder, {"a": entry("F128")}, b"1234")


# safetensors: JSON


@refused("can't decode byte")
def header_that_is_not_utf8(folder):
    write_weights(folder, json.dumps({"a": entry()}).encode().replace(b'"a"', b'"\xff\xfe"'), b"1234")


@refused("'\\ud800' is no name of a tensor")
def name_of_half_a_character(folder):
    write_weights(folder, {"\ud800": entry()}, b"1234")


@refused("'\\x1b[2J' is no name of a tensor")
def name_that_clears_the_terminal(folder):
    write_weights(folder, {"\x1b[2J": entry()}, b"1234")


@refused("the same key twice")
def same_tensor_twice(folder):
    one = json.dumps(entry())
    write_weights(folder, f'{{"a": {one}, "a": {one}}}'.encode(), b"1234")


@refused("the same key twice")
def same_field_twice(folder):
    write_weights(folder, json.dumps({"a": entry()}).replace("}}", ', "shape": [9]}}').encode(), b"1234")


@refused("its header is no JSON object")
def header_is_a_list(folder):
    write_weights(folder, [entry()], b"1234")


@refused("its header cannot be read")
def header_is_no_json(folder):
    write_weights(folder, b"{" * 100)


@refused("its header cannot be read")
def header_is_a_pickle(folder):
    (folder / WEIGHTS).write_bytes((20).to_bytes(8, "little") + pickle.dumps({"a": 1} | {"b": "c" * 40}))


@refused("malformed entry")
def entry_is_a_list(folder):
    write_weights(folder, {"a": ["U8", [4], [0, 4]]}, b"1234")


@refused("malformed entry: Field required")
def entry_without_offsets(folder):
    write_weights(folder, {"a": {"dtype": "U8", "shape": [4]}}, b"1234")


@refused("malformed entry: List should have at most 2 items")
def entry_with_three_offsets(folder):
    write_weights(folder, {"a": entry(offsets=(0, 2, 4))}, b"1234")


@refused("malformed entry: Extra inputs")
def entry_with_a_script(folder):
    write_weights(folder, {"a": entry() | {"__reduce__": "os.system"}}, b"1234")


@refused("nested too deeply")
def deep_header(folder):
    write_weights(folder, b'{"a":' * 50_000 + b"1" + b"}" * 50_000)


@refused("nested too deeply")
def header_of_900_levels(folder):
    """As deep as the parser goes, so that what comes after it would fail."""
    unit = b'{"":' * 900 + b"0" + b"}" * 900 + b","
    write_weights(folder, b'{"a": [' + fill(unit, HEADER_LIMIT - 100) + b"0]}")


@refused("is no name of a tensor")
def name_of_a_megabyte(folder):
    write_weights(folder, {"\n" * (HEADER_LIMIT // 2 - 100): entry()}, b"1234")


# config.json


@refused("104857600 bytes, more than the 4194304 that are read")
def config_of_100_megabytes(folder):
    os.truncate(folder / "config.json", 100 * 2**20)


@refused("nested too deeply")
def deep_config(folder):
    (folder / "config.json").write_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@refused("nested too deeply")
def config_of_40_levels(folder):
    (folder / "config.json").write_bytes(b'{"a":' + b"[" * 40 + b"]" * 40 + b"}")


@refused("more than 262144 lists and objects")
def config_of_lists(folder):
    """Parsed, it would take 200 MB."""
    unit = b"[" * 30 + b"]" * 30 + b","
    (folder / "config.json").write_bytes(b'{"a":[' + fill(unit, JSON_LIMIT - 100) + b"0]}")


@refused("an integer of 1000000 digits")
def config_with_a_long_number(folder):
    (folder / "config.json").write_bytes(b'{"hidden_size": %s}' % (b"9" * 1_000_000))


@refused("it holds no object")
def config_is_a_list(folder):
    (folder / "config.json").write_text('[{"architectures": ["LlamaForCausalLMEagle3"]}]')


@refused("it holds no object")
def config_is_not_a_number(folder):
    (folder / "config.json").write_text("NaN")


@refused("config.json")
def config_is_empty(folder):
    (folder / "config.json").write_bytes(b"")


@refused("can't decode byte")
def config_that_is_not_utf8(folder):
    (folder / "config.json").write_bytes(b'{"architectures": ["\xff\xfe"]}')


@refused("config.json")
def config_in_utf16(folder):
    (folder / "config.json").write_bytes("{}".encode("utf-16"))


@refused("a draft checkpoint with a config.json")
def config_is_a_folder(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


@refused("a draft checkpoint with a config.json")
def config_is_a_pipe(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


@refused("a draft checkpoint with a config.json")
def config_is_a_device(folder):
    relink(folder / "config.json", "/dev/zero")


# index


def write_index(folder, content):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / INDEX).write_bytes(raw)


@refused("weight_map maps no names")
def index_without_a_map(folder):
    write_index(folder, {"metadata": {}})


@refused("weight_map maps no names")
def index_of_a_list(folder):
    write_index(folder, {"weight_map": [WEIGHTS]})


@refused("weight_map maps no names")
def index_of_nothing(folder):
    """Else the draft would pass for one with .bin files, whose tensors nobody looks at."""
    write_index(folder, {"weight_map": {}})


@refused("weight_map maps no names")
def index_of_numbers(folder):
    write_index(folder, {"weight_map": {"a": 1}})


@refused("weight_map maps no names")
def index_of_objects(folder):
    write_index(folder, {"weight_map": {"a": {"b": WEIGHTS}}})


@refused("without ../model.safetensors")
def index_that_leads_up(folder):
    shutil.copy(folder / WEIGHTS, folder.parent / WEIGHTS)
    write_index(folder, {"weight_map": {"a": f"../{WEIGHTS}"}})


@refused("without ./model.safetensors")
def index_that_leads_nowhere_else(folder):
    write_index(folder, {"weight_map": {"a": f"./{WEIGHTS}"}})


@refused("which model.safetensors.index.json names")
def index_of_an_absolute_path(folder):
    write_index(folder, {"weight_map": {"a": str(folder / WEIGHTS)}})


@refused("without /etc/passwd")
def index_of_a_system_file(folder):
    write_index(folder, {"weight_map": {"a": "/etc/passwd"}})


@refused("which model.safetensors.index.json names")
def index_with_a_null_character(folder):
    write_index(folder, {"weight_map": {"a": f"{WEIGHTS}\0"}})


@refused("which model.safetensors.index.json names")
def index_of_a_megabyte_of_a_name(folder):
    write_index(folder, {"weight_map": {"a": "x" * 2**20}})


@refused("more than the 4194304 that are read")
def index_of_100_megabytes(folder):
    write_index(folder, {})
    os.truncate(folder / INDEX, 100 * 2**20)


@refused("nested too deeply")
def deep_index(folder):
    write_index(folder, b'{"weight_map":' * 50_000 + b"{}" + b"}" * 50_000)


# links


def relink(path, target):
    path.unlink()
    path.symlink_to(target)


@refused("a file inside the checkpoint's folder")
def config_link_that_leads_out(folder):
    outside = folder.parent / f"{folder.name}.json"
    shutil.move(folder / "config.json", outside)
    (folder / "config.json").symlink_to(outside)


@refused("a file inside the checkpoint's folder")
def config_link_that_leads_out_relatively(folder):
    outside = folder.parent / f"{folder.name}.json"
    shutil.move(folder / "config.json", outside)
    (folder / "config.json").symlink_to(f"../{folder.name}.json")


@refused("a file inside the checkpoint's folder")
def config_link_to_a_system_file(folder):
    relink(folder / "config.json", "/etc/passwd")


@refused("a file inside the checkpoint's folder")
def config_link_through_a_link(folder):
    (folder / "hop.json").symlink_to("/etc/passwd")
    relink(folder / "config.json", "hop.json")


@refused("a file inside the checkpoint's folder")
def shard_link_that_leads_out(folder):
    outside = folder.parent / f"{folder.name}.safetensors"
    shutil.move(folder / WEIGHTS, outside)
    (folder / WEIGHTS).symlink_to(outside)


@refused("a file inside the checkpoint's folder")
def index_link_that_leads_out(folder):
    (folder / INDEX).symlink_to("/etc/passwd")


@refused("a file that is there")
def config_link_to_nothing(folder):
    relink(folder / "config.json", "no-such-file")


@refused("a file that is there")
def shard_link_to_nothing(folder):
    relink(folder / WEIGHTS, "../no-such-file")


@refused("a file that is there")
def config_link_to_itself(folder):
    relink(folder / "config.json", "config.json")


@refused("a file that is there")
def shard_links_in_a_circle(folder):
    (folder / "hop").symlink_to(WEIGHTS)
    relink(folder / WEIGHTS, "hop")


@refused("without any *.safetensors")
def shard_is_a_pipe(folder):
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


@refused("without any *.safetensors")
def shard_is_a_folder(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


# what is bounded, and no reason to refuse


@served
def pipe_beside_the_weights(folder):
    os.mkfifo(folder / INDEX)
    os.mkfifo(folder / "extra.safetensors")


@served
def links_that_nobody_follows(folder):
    (folder / "README.md").symlink_to("/etc/passwd")
    (folder / "broken").symlink_to("no-such-file")
    (folder / "folder").symlink_to("/etc")


@served
def link_within_the_folder(folder):
    shutil.move(folder / WEIGHTS, folder / "weights")
    (folder / WEIGHTS).symlink_to("weights")


@served
def gigabyte_of_vectors(folder):
    """Sparse. All of them are vectors that would be read by value."""
    size = 2**20
    header = {f"{n}": entry("U8", [size], (n * size, (n + 1) * size)) for n in range(1024)}
    write_weights(folder, header)
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size + 1024 * size)


@served
def as_many_tensors_as_fit(folder):
    one = b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"'
    names = [b"%x" % number for number in range(HEADER_LIMIT // (len(one) + 5) - 10)]
    write_weights(folder, b'{"' + b"".join(name + one for name in names) + b'__metadata__":{}}')


@served
def config_of_four_megabytes(folder):
    config = json.loads((folder / "config.json").read_text())
    config["padding"] = ["ab"] * (JSON_LIMIT // 6 - 1000)
    (folder / "config.json").write_text(json.dumps(config))


class TooSlow(BaseException):
    """No OSError and no Exception, which the package may handle."""


@contextmanager
def time_limit():
    def stop(*_):
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)  # one that waits takes no processor time
    started = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - started < SECONDS


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
    assert (report["modules"], report["unpickled"], report["opened"]) == ([], [], [])
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


def test_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    tiny_draft(tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnsupportedDraftError, match=r"config\.json.*'unreadable'.*not for you"):
        read_draft_files(str(tmp_path))


def test_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    tiny_draft(tmp_path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UnsupportedDraftError, match=r"the folder.*'unreadable'.*not for you"):
        read_draft_files(str(tmp_path))
