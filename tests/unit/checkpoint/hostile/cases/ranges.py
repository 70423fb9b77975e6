"""safetensors headers whose shapes, types and byte ranges do not fit."""

from __future__ import annotations

from tests.unit.checkpoint.hostile.breaks import entry, fill, refused, write_weights
from vllm_eagle_ext.checkpoint.headers import HEADER_LIMIT


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
