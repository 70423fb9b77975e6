"""python -m tests.support.vllm_faults_process RESULT SCRIPT..: runs the scripts of docs/dev/vllm_faults.

vLLM is imported once, and each script runs in a fork of that process: the scripts replace kernels,
import numba and create process groups, which the next one must not find. Set OMP_NUM_THREADS to 1, so
that no thread of OpenMP's is lost in a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

# What most scripts import. The V1 runner comes later: it imports numba, beside which vLLM cannot replace
# kernels, and some scripts do.
COMMON = (
    "vllm.engine.arg_utils",
    "vllm.v1.spec_decode.llm_base_proposer",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.model_executor.models.qwen3_dflash",
)
V1_RUNNER = "vllm.v1.worker.gpu_model_runner"


def main() -> None:
    result, *scripts = map(Path, sys.argv[1:])
    for module in COMMON:
        importlib.import_module(module)
    said = {}
    for script in sorted(scripts, key=needs_runner):
        if needs_runner(script):
            importlib.import_module(V1_RUNNER)
        said[script.stem] = run(script)
    result.write_text(json.dumps(said))


def needs_runner(script: Path) -> bool:
    return V1_RUNNER in script.read_text()


def run(script: Path) -> tuple[int, str]:
    """Exit status and output."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os._exit(status_of(script))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode()


def status_of(script: Path) -> int:
    status = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - told by the parent
        traceback.print_exc()
        status = 2
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    main()
