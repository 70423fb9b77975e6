"""Every way to break a good draft, with words of its refusal, and what a good draft survives."""

from __future__ import annotations

import json
import os
import pickle
import shutil

from vllm_eagle_ext.draft.draft_files import JSON_LIMIT
from vllm_eagle_ext.draft.headers import HEADER_LIMIT

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


def write_weights(folder, header, data=b"", *, length=None):
    """`header` as bytes or as the object that they spell; `length` is what the file claims."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(raw) if length is None else length
    (folder / WEIGHTS).write_bytes(claimed.to_bytes(8, "little") + raw + data)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def fill(unit, size):
    return unit * (size // len(unit))


def relink(path, target):
    path.unlink()
    path.symlink_to(target)


def _weights(*arguments, **keywords):
    return lambda folder: write_weights(folder, *arguments, **keywords)


def _config(raw):
    return lambda folder: (folder / CONFIG).write_bytes(raw)


def _index(content):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda folder: (folder / INDEX).write_bytes(raw)


def _mapped(name):
    return _index({"weight_map": {"a": name}})


def _sized(name, size):
    """A file of that size, or of so many bytes less than it had."""

    def resize(folder):
        path = folder / name
        path.touch()
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)

    return resize


def _replaced(name, make):
    def replace(folder):
        (folder / name).unlink()
        make(folder / name)

    return replace


def _moved_out(name, *, relative=False):
    """A link to the file, which lies beside the folder."""

    def move(folder):
        outside = folder.parent / f"{folder.name}.moved"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(f"../{outside.name}" if relative else outside)

    return move


def _linked(name, target, hop=None):
    """A link in the place of a file, by way of another where there is a `hop`."""

    def link(folder):
        if hop:
            (folder / hop).symlink_to(target)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(hop or target)

    return link


def _index_that_leads_up(folder):
    shutil.copy(folder / WEIGHTS, folder.parent / WEIGHTS)
    _mapped(f"../{WEIGHTS}")(folder)


def _truncated_after_the_header(folder):
    length = int.from_bytes((folder / WEIGHTS).read_bytes()[:8], "little")
    os.truncate(folder / WEIGHTS, 8 + length)


def _headers_of_many_shards(folder):
    write_weights(folder, b"{}" + b" " * (HEADER_LIMIT // 4))
    for number in range(8):
        shutil.copy(folder / WEIGHTS, folder / f"{number}.safetensors")


_PICKLE = pickle.dumps({"a": 1} | {"b": "c" * 40})
_ONE = json.dumps(entry())
_ANY_SHAPE = b'{"a": {"dtype": "U8", "data_offsets": [0, 4], "shape": [%s1]}}'
_ANY_OFFSET = b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, %s]}}'
_NO_CONFIG = "a folder or repository with a config.json"
_OUTSIDE, _NOWHERE = "a file inside the checkpoint's folder", "a file that is there"
_LAPS, _NO_INTEGER, _NO_NAME = "overlap others or leave a gap", "valid integer", "is no name of a tensor"
_NO_MAP, _NAMES = "weight_map maps no names", "which model.safetensors.index.json names"
_NO_JSON, _DEEP, _NO_TEXT = "its header cannot be read", "nested too deeply", "can't decode byte"
_CLAIMS, _DESCRIBES = "its header claims", "its header describes"

# Name -> (words of the message, what breaks a good draft).
REFUSED = {
    # A config.json that is too much, too deep or no file.
    "config_of_100_megabytes": (
        "104857600 bytes, more than the 4194304 that are read", _sized(CONFIG, 100 * 2**20),
    ),
    "deep_config": (_DEEP, _config(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    "config_of_40_levels": (_DEEP, _config(b'{"a":' + b"[" * 40 + b"]" * 40 + b"}")),
    "config_of_lists": (  # parsed, it would take 200 MB
        "more than 262144 lists and objects",
        _config(b'{"a":[' + fill(b"[" * 30 + b"]" * 30 + b",", JSON_LIMIT - 100) + b"0]}"),
    ),
    "config_with_a_long_number": (
        "an integer of 1000000 digits", _config(b'{"hidden_size": %s}' % (b"9" * 1_000_000)),
    ),
    "config_is_a_list": (
        "it holds no object", _config(b'[{"architectures": ["LlamaForCausalLMEagle3"]}]'),
    ),
    "config_is_not_a_number": ("it holds no object", _config(b"NaN")),
    "config_is_empty": (CONFIG, _config(b"")),
    "config_that_is_not_utf8": (_NO_TEXT, _config(b'{"architectures": ["\xff\xfe"]}')),
    "config_in_utf16": (CONFIG, _config("{}".encode("utf-16"))),
    "config_is_a_folder": (_NO_CONFIG, _replaced(CONFIG, os.mkdir)),
    "config_is_a_pipe": (_NO_CONFIG, _replaced(CONFIG, os.mkfifo)),
    "config_is_a_device": (_NO_CONFIG, _linked(CONFIG, "/dev/zero")),
    # Headers that are no JSON, or JSON of something else.
    "header_that_is_not_utf8": (
        _NO_TEXT, _weights(b'{"\xff\xfe": %s}' % _ONE.encode(), b"1234"),
    ),
    "name_of_half_a_character": (f"'\\ud800' {_NO_NAME}", _weights({"\ud800": entry()}, b"1234")),
    "name_that_clears_the_terminal": (
        f"'\\x1b[2J' {_NO_NAME}", _weights({"\x1b[2J": entry()}, b"1234"),
    ),
    "same_tensor_twice": (
        "the same key twice", _weights(f'{{"a": {_ONE}, "a": {_ONE}}}'.encode(), b"1234"),
    ),
    "same_field_twice": (
        "the same key twice", _weights(b'{"a": %s, "shape": [9]}}' % _ONE[:-1].encode(), b"1234"),
    ),
    "header_is_a_list": ("its header is no JSON object", _weights([entry()], b"1234")),
    "header_is_no_json": (_NO_JSON, _weights(b"{" * 100)),
    "header_is_a_pickle": (_NO_JSON, _weights(_PICKLE[:20], _PICKLE[20:])),
    "entry_is_a_list": ("malformed entry", _weights({"a": ["U8", [4], [0, 4]]}, b"1234")),
    "entry_without_offsets": (
        "malformed entry: Field required", _weights({"a": {"dtype": "U8", "shape": [4]}}, b"1234"),
    ),
    "entry_with_three_offsets": (
        "malformed entry: List should have at most 2 items",
        _weights({"a": entry(offsets=(0, 2, 4))}, b"1234"),
    ),
    "entry_with_a_script": (
        "malformed entry: Extra inputs", _weights({"a": entry() | {"__reduce__": "os.system"}}, b"1234"),
    ),
    "deep_header": (_DEEP, _weights(b'{"a":' * 50_000 + b"1" + b"}" * 50_000)),
    # As deep as the parser goes, so that what comes after it would fail.
    "header_of_900_levels": (
        _DEEP,
        _weights(
            b'{"a": [' + fill(b'{"":' * 900 + b"0" + b"}" * 900 + b",", HEADER_LIMIT - 100) + b"0]}"
        ),
    ),
    "name_of_a_megabyte": (_NO_NAME, _weights({"\n" * (HEADER_LIMIT // 2 - 100): entry()}, b"1234")),
    # Shapes, types and byte ranges that do not fit.
    "overlap": (f"'b' {_LAPS}", _weights({"a": entry(), "b": entry(offsets=(3, 7))}, b"1234567")),
    "same_range_twice": (f"'b' {_LAPS}", _weights({"a": entry(), "b": entry()}, b"1234")),
    "gap_between": (f"'b' {_LAPS}", _weights({"a": entry(), "b": entry(offsets=(5, 9))}, b"123456789")),
    "gap_before": (f"'a' {_LAPS}", _weights({"a": entry(offsets=(1, 5))}, b"12345")),
    "end_before_begin": (f"'b' {_LAPS}", _weights({"a": entry(), "b": entry(offsets=(4, 0))}, b"1234")),
    "end_behind_the_file": (
        _DESCRIBES, _weights({"a": entry(shape=[2**40], offsets=(0, 2**40))}, b"1234"),
    ),
    "negative_begin": ("greater than or equal to 0", _weights({"a": entry(offsets=(-4, 0))})),
    "shape_of_other_bytes": (
        "'a' of shape [5] and U8 has 4 bytes", _weights({"a": entry(shape=[5])}, b"1234"),
    ),
    "negative_shape": ("greater than or equal to 0", _weights({"a": entry(shape=[-2, -2])}, b"1234")),
    "shape_that_overflows": (  # in 64 bits its product is 4
        "'a' of shape [4611686018427387905, 4] and U8 has 4 bytes",
        _weights({"a": entry(shape=[2**62 + 1, 4])}, b"1234"),
    ),
    "shape_of_many_dimensions": (  # the product would take a minute
        "at most 8 items", _weights(_ANY_SHAPE % fill(b"999999999,", HEADER_LIMIT - 100), b"1234"),
    ),
    "shape_of_many_digits": (
        "an integer of 4000 digits",
        _weights(_ANY_SHAPE % fill(b"9" * 4000 + b",", HEADER_LIMIT - 100), b"1234"),
    ),
    "offset_of_many_digits": (
        "an integer of 100000 digits", _weights(_ANY_OFFSET % (b"9" * 100_000), b"1234"),
    ),
    "shape_of_floats": (_NO_INTEGER, _weights({"a": entry(shape=[4.0])}, b"1234")),
    "shape_of_booleans": (_NO_INTEGER, _weights({"a": entry(shape=[True], offsets=(0, 1))}, b"1")),
    "unknown_dtype": (
        "dtype 'F128', which safetensors does not know", _weights({"a": entry("F128")}, b"1234"),
    ),
    # An index that maps no names, or maps them elsewhere.
    "index_without_a_map": (_NO_MAP, _index({"metadata": {}})),
    "index_of_a_list": (_NO_MAP, _index({"weight_map": [WEIGHTS]})),
    # Else the draft would pass for one with .bin files, whose tensors nobody looks at.
    "index_of_nothing": (_NO_MAP, _index({"weight_map": {}})),
    "index_of_numbers": (_NO_MAP, _mapped(1)),
    "index_of_objects": (_NO_MAP, _mapped({"b": WEIGHTS})),
    "index_that_leads_up": ("without ../model.safetensors", _index_that_leads_up),
    "index_that_leads_nowhere_else": ("without ./model.safetensors", _mapped(f"./{WEIGHTS}")),
    "index_of_an_absolute_path": (
        _NAMES, lambda folder: _mapped(str(folder / WEIGHTS))(folder),
    ),
    "index_of_a_system_file": ("without /etc/passwd", _mapped("/etc/passwd")),
    "index_with_a_null_character": (_NAMES, _mapped(f"{WEIGHTS}\0")),
    "index_of_a_megabyte_of_a_name": (_NAMES, _mapped("x" * 2**20)),
    "index_of_100_megabytes": ("more than the 4194304 that are read", _sized(INDEX, 100 * 2**20)),
    "deep_index": (_DEEP, _index(b'{"weight_map":' * 50_000 + b"{}" + b"}" * 50_000)),
    # Lengths that are not what they claim.
    **{f"truncated_at_{cut}": ("shorter than 8 bytes", _sized(WEIGHTS, cut)) for cut in range(8)},
    **{f"truncated_at_{cut}": (_CLAIMS, _sized(WEIGHTS, cut)) for cut in (8, 9, 500, 1000)},
    **{f"truncated_at_{cut}": (_DESCRIBES, _sized(WEIGHTS, cut)) for cut in (2000, -1000, -1)},
    "truncated_after_the_header": (_DESCRIBES, _truncated_after_the_header),
    "trailing_bytes": (_DESCRIBES, _weights({"a": entry()}, b"12345")),
    "length_of_2_to_the_63": (f"{_CLAIMS} 9223372036854775808 bytes", _weights(b"{}", length=2**63)),
    "length_of_all_ones": (f"{_CLAIMS} 18446744073709551615 bytes", _weights(b"{}", length=2**64 - 1)),
    "length_of_2_to_the_40": (f"{_CLAIMS} 1099511627776 bytes", _weights(b"{}", length=2**40)),
    "length_of_one_byte_too_many": (f"{_CLAIMS} 3 bytes, the file has 10", _weights(b"{}", length=3)),
    "length_of_none": (_NO_JSON, _weights(b"{}", length=0)),
    "header_above_the_limit": (
        f"more than the {HEADER_LIMIT} that are read", _weights(b"{}" + b" " * (HEADER_LIMIT - 1)),
    ),
    "headers_of_many_shards": ("up to here the headers have more than", _headers_of_many_shards),
    # Links that lead out of the folder or nowhere, and what is no regular file.
    "config_link_that_leads_out": (_OUTSIDE, _moved_out(CONFIG)),
    "config_link_that_leads_out_relatively": (_OUTSIDE, _moved_out(CONFIG, relative=True)),
    "config_link_to_a_system_file": (_OUTSIDE, _linked(CONFIG, "/etc/passwd")),
    "config_link_through_a_link": (_OUTSIDE, _linked(CONFIG, "/etc/passwd", "hop.json")),
    "shard_link_that_leads_out": (_OUTSIDE, _moved_out(WEIGHTS)),
    "index_link_that_leads_out": (_OUTSIDE, _linked(INDEX, "/etc/passwd")),
    "config_link_to_nothing": (_NOWHERE, _linked(CONFIG, "no-such-file")),
    "shard_link_to_nothing": (_NOWHERE, _linked(WEIGHTS, "../no-such-file")),
    "config_link_to_itself": (_NOWHERE, _linked(CONFIG, CONFIG)),
    "shard_links_in_a_circle": (_NOWHERE, _linked(WEIGHTS, WEIGHTS, "hop")),
    "shard_is_a_pipe": ("without any *.safetensors", _replaced(WEIGHTS, os.mkfifo)),
    "shard_is_a_folder": ("without any *.safetensors", _replaced(WEIGHTS, os.mkdir)),
}  # fmt: skip


def pipe_beside_the_weights(folder):
    os.mkfifo(folder / INDEX)
    os.mkfifo(folder / "extra.safetensors")


def links_that_nobody_follows(folder):
    (folder / "README.md").symlink_to("/etc/passwd")
    (folder / "broken").symlink_to("no-such-file")
    (folder / "folder").symlink_to("/etc")


def link_within_the_folder(folder):
    shutil.move(folder / WEIGHTS, folder / "weights")
    (folder / WEIGHTS).symlink_to("weights")


def gigabyte_of_vectors(folder):
    """Sparse. All of them are vectors that would be read by value."""
    size = 2**20
    header = {f"{n}": entry("U8", [size], (n * size, (n + 1) * size)) for n in range(1024)}
    write_weights(folder, header)
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size + 1024 * size)


def as_many_tensors_as_fit(folder):
    rest = b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"'
    names = [b"%x" % number for number in range(HEADER_LIMIT // (len(rest) + 5) - 10)]
    write_weights(folder, b'{"' + b"".join(name + rest for name in names) + b'__metadata__":{}}')


def config_of_four_megabytes(folder):
    config = json.loads((folder / CONFIG).read_text())
    config["padding"] = ["ab"] * (JSON_LIMIT // 6 - 1000)
    (folder / CONFIG).write_text(json.dumps(config))


SERVED = {
    change.__name__: change
    for change in (
        pipe_beside_the_weights, links_that_nobody_follows, link_within_the_folder, gigabyte_of_vectors,
        as_many_tensors_as_fit, config_of_four_megabytes,
    )
}  # fmt: skip
