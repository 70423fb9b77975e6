"""What `vllm-eagle check` costs: the least CPU seconds of three runs, and resident memory.

    python -m benchmarks.check_cost

It fails beyond a bound, which is that of a quiet machine: an import of vLLM takes 6 CPU seconds there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext.checkpoint import read_draft_files
from vllm_eagle_ext.preflight import dry_child

MOST = {"import of vLLM": None, "cold": 10.0, "--quick": 1.0, "warm fork": 0.5}  # CPU seconds
_COMMAND = "from vllm_eagle_ext.cli import app; app()"
# A small process asks: a large one would count as the command's memory.
_USED = """import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))"""


def started(*words: str) -> tuple[float, float]:
    """CPU seconds and KiB of Python with these words, and of what it waits for."""
    seconds, size = json.loads(
        subprocess.check_output([sys.executable, "-c", _USED, sys.executable, *words])
    )
    return seconds, size


def forked(request: dry_child.DryRequest) -> tuple[float, float]:
    if not (child := os.fork()):
        os._exit(0 if "findings" in dry_child.answer(request) else 1)
    _, status, used = os.wait4(child, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        draft, target = (
            str(write(Path(folder) / write.__name__)) for write in (tiny_draft, write_target)
        )
        check = ("-c", _COMMAND, "check", draft, "--target", target)
        asked = json.dumps({"method": "eagle3", "model": draft, "num_speculative_tokens": 3})
        words, files = [target, "--speculative-config", asked], read_draft_files(draft)
        request = dry_child.DryRequest(words=words, draft=draft, files=files)
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        runs = {
            "import of vLLM": lambda: started("-c", "import vllm.engine.arg_utils"),
            "cold": lambda: started(*check), "--quick": lambda: started(*check, "--quick"),
            "warm fork": lambda: forked(request),
        }  # fmt: skip
        dry_child.warm(None)
        dry_child.answer(request)
        found = {name: min(run() for _ in range(3)) for name, run in runs.items()}
    for name, (seconds, size) in found.items():
        print(f"{name}: {seconds:.2f} CPU s, {size / 1024:.0f} MiB; at most {MOST[name]} CPU s")
    raise SystemExit(int(any(most and found[name][0] > most for name, most in MOST.items())))


if __name__ == "__main__":
    main()
