"""Makes .venv-peers once: other projects' libraries, added to .venv's. Standard library only.

`python tools/setup_peers.py`, after tools/setup_venv.py. Nothing of it enters the package or .venv:
the peers are installed without their dependencies, which are .venv's wherever it has them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PEERS_VENV = ROOT / ".venv-peers"
READY = PEERS_VENV / "ready"
PYTHON = PEERS_VENV / "bin" / "python"

# Newest releases whose files and forwards tests/peers was written against; another release may write
# other files, which is what the comparison is for: raise one pin at a time, and look at the table.
PEERS = {
    "speculators": "0.9.0",  # vllm-project/speculators
    "specforge": "0.2.0",  # sgl-project/SpecForge
    "dflash": "0.1.0",  # z-lab's
    "angelslim": "0.5.0",  # Tencent/AngelSlim
}
# What they import that .venv lacks, to build a draft and to run it.
NEEDED = {
    "datasets": "5.0.1",  # imported by speculators and AngelSlim; dflash pins this release
    "hs-connectors": "0.9.0",  # imported by speculators, which pins this release
    "multiprocess": "0.70.19",  # imported by datasets
    "pandas": "3.1.1",  # imported by datasets; its own needs come with .venv's matplotlib
    "pyarrow": "26.0.1",  # imported by datasets
    "xxhash": "4.1.0",  # imported by datasets
}


def say(text: str) -> None:
    print(f"[peers] {text}", flush=True)


def fingerprint() -> str:
    made_of = Path(__file__).read_bytes() + (VENV / "ready").read_bytes()
    return hashlib.sha256(f"{sys.version_info[:2]} {VENV}".encode() + made_of).hexdigest()


def libraries(python: Path) -> Path:
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.check_output(command, text=True).strip())


def install(*pins: str) -> bool:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", *pins]
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> None:
    if not (VENV / "ready").exists():
        sys.exit("[peers] .venv is not there yet; make it first: make venv")
    wanted = fingerprint()
    if READY.exists() and READY.read_text() == wanted:
        return
    say("Making .venv-peers, which also reads .venv's packages ...")
    venv.create(PEERS_VENV, with_pip=True, clear=True, symlinks=True)
    added = f"import site; site.addsitedir({str(libraries(VENV / 'bin' / 'python'))!r})\n"
    (libraries(PYTHON) / "venv.pth").write_text(added)
    pins = [f"{name}=={version}" for name, version in (PEERS | NEEDED).items()]
    # One that the index lacks must not cost the others.
    missing = [] if install(*pins) else [pin for pin in pins if not install(pin)]
    if missing:
        # The tests say again what they could not compare; the next call tries again.
        say(f"NOT INSTALLED, pip's messages are above: {', '.join(missing)}.")
        say("What needs them will be skipped, and nothing is known of it.")
        return
    READY.write_text(wanted)
    say("Done: .venv-peers is ready, and is reused from now on.")


if __name__ == "__main__":
    main()
