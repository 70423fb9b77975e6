"""`python -m tests.contract [--release 0.33.0] [--source DIR]`: what we lean on, in a vLLM.

The vLLM is the installed one, a release read from its wheel, or a source tree. A tree that does not say
its release is judged as the newest that is known, unless --release says another.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tests.contract.changes import changed_fields, faults_to_look_at, fixed_faults
from tests.contract.check import (
    ReadModule,
    failures,
    folder_source,
    installed_source,
    stated_release,
    wheel_source,
)
from tests.contract.surface import SURFACE
from vllm_eagle_ext.memory.device import NEWEST_RELEASE

CACHE = Path("build/contract")


def download(release: str) -> Path:
    """The wheel of a vLLM release, for any platform: only its Python files are read."""
    folder = CACHE / release
    if not list(folder.glob("vllm-*.whl")):
        print(f"Downloading the wheel of vllm {release} (some hundred MB), once ...")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(folder), f"vllm=={release}"]
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(f"pip could not download vllm=={release}; its message is above.")
    return next(folder.glob("vllm-*.whl"))


def main(
    release: Annotated[
        str,
        typer.Option(help="Read the wheel of this release; with --source, judge the tree as this one."),
    ] = "",
    source: Annotated[
        Path | None, typer.Option(help="Read this source tree: the folder that holds vllm/.")
    ] = None,
) -> None:
    """Check every vLLM name, signature and behaviour that the package leans on."""
    read, name = _opened(release, source)
    problems = failures(read, name)
    for problem in problems:
        print(f"FAILED {problem}")
    asked = sum(entry.holds_in(name) for entry in SURFACE)
    print(f"vLLM {name}: {asked - len({p.split(' ')[0] for p in problems})} of {asked} hold.")
    if read is not installed_source:
        _tell_changes(read, name)
    raise SystemExit(1 if problems else 0)


def _opened(release: str, source: Path | None) -> tuple[ReadModule, str]:
    """Return how modules are read, and the release that they are of."""
    if source is not None:
        read = folder_source(source)
        version = release or stated_release(read)
        if not version:
            print(f"The tree does not say its release: judged as {NEWEST_RELEASE}, or say --release.")
        return read, version or NEWEST_RELEASE
    if release:
        return wheel_source(download(release)), release
    import vllm

    return installed_source, vllm.__version__


def _tell_changes(read: ReadModule, name: str) -> None:
    """Say what differs from the installed vLLM; none of it is a failure."""
    print("Fields of configs, against the installed vLLM:")
    for text in changed_fields(installed_source, read):
        print(f"  {text}")
    print(f"Faults that the pages call fixed by {name}, whose workarounds it no longer needs:")
    for fault in fixed_faults(name):
        print(f"  {fault}")
    print("Other faults to look at again, since a place of their cause was changed:")
    for text in faults_to_look_at(installed_source, read):
        if text.partition(":")[0] not in fixed_faults(name):
            print(f"  {text}")


if __name__ == "__main__":
    typer.run(main)
