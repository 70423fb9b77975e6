"""safetensors files whose lengths are not what they claim."""

from __future__ import annotations

import os
import shutil

from tests.unit.checkpoint.hostile.breaks import WEIGHTS, entry, refused, write_weights
from vllm_eagle_ext.checkpoint.headers import HEADER_LIMIT


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
