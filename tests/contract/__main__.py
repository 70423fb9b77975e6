"""`python -m tests.contract [--release 0.33.0]`: the installed vLLM, or a release read from a wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from tests.contract.check import failures, installed_source, wheel_source
from tests.contract.surface import SURFACE

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
    release: Annotated[str, typer.Option(help="A release to read; default: the installed one.")] = "",
) -> None:
    """Check every vLLM name, signature and behaviour that the package leans on."""
    if release:
        read, name = wheel_source(download(release)), release
    else:
        import vllm

        read, name = installed_source, vllm.__version__
    problems = failures(read, name)
    for problem in problems:
        print(f"FAILED {problem}")
    asked = sum(entry.holds_in(name) for entry in SURFACE)
    print(f"vLLM {name}: {asked - len({p.split(' ')[0] for p in problems})} of {asked} hold.")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
