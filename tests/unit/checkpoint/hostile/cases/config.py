"""A config.json that is too much, too deep or no file."""

from __future__ import annotations

import os

from tests.unit.checkpoint.hostile.breaks import fill, refused, relink
from vllm_eagle_ext.checkpoint.draft_files import JSON_LIMIT


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


@refused("a folder or repository with a config.json")
def config_is_a_folder(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


@refused("a folder or repository with a config.json")
def config_is_a_pipe(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


@refused("a folder or repository with a config.json")
def config_is_a_device(folder):
    relink(folder / "config.json", "/dev/zero")
