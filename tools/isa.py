"""`python tools/isa.py avx2 COMMAND ...`: runs a command as on a CPU with AVX2 and nothing newer, so
that vLLM loads its library for AVX2. Standard library only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

LIMITED = Path(__file__).resolve().parents[1] / "tests/support/avx2"  # a sitecustomize.py
ENVIRONMENT = {
    "ISA_LIMIT": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    # What torch compiles for one instruction set ends a process that was made for another.
    "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_avx2",
    "VLLM_CACHE_ROOT": f"{tempfile.gettempdir()}/vllm_avx2",
}


def main() -> None:
    if sys.argv[1] != "avx2":
        sys.exit(f"{sys.argv[1]}: allowed is avx2")
    path = os.pathsep.join(filter(None, [str(LIMITED), os.environ.get("PYTHONPATH")]))
    os.execvpe(sys.argv[2], sys.argv[2:], {**os.environ, **ENVIRONMENT, "PYTHONPATH": path})


if __name__ == "__main__":
    main()
