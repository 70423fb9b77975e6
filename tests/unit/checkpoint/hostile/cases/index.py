"""An index that maps no names, or maps them elsewhere."""

from __future__ import annotations

import json
import os
import shutil

from tests.unit.checkpoint.hostile.breaks import INDEX, WEIGHTS, refused


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
