"""Links that lead out of the folder or nowhere, and what is no regular file."""

from __future__ import annotations

import os
import shutil

from tests.unit.checkpoint.hostile.breaks import INDEX, WEIGHTS, refused, relink


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
