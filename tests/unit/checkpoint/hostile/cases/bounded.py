"""What is bounded, and no reason to refuse."""

from __future__ import annotations

import json
import os
import shutil

from tests.unit.checkpoint.hostile.breaks import INDEX, WEIGHTS, entry, served, write_weights
from vllm_eagle_ext.checkpoint.draft_files import JSON_LIMIT
from vllm_eagle_ext.checkpoint.headers import HEADER_LIMIT


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
