"""safetensors headers that are no JSON, or JSON of something else."""

from __future__ import annotations

import json
import pickle

from tests.unit.checkpoint.hostile.breaks import WEIGHTS, entry, fill, refused, write_weights
from vllm_eagle_ext.checkpoint.headers import HEADER_LIMIT


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
