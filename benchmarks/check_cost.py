"""What `vllm-eagle check` and vLLM's `plan` cost: the least CPU seconds of three runs, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext.draft import read_draft_files
from vllm_eagle_ext.start import dry_child

MOST = {"cold": 10.0, "--quick": 1.0}  # CPU seconds
_COMMAND = "from vllm_eagle_ext.cli import app; app()"
# A small process asks: a large one would count as the command's memory.
_USED = """import json, resource, subprocess, sys
assert subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode in (0, 3)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))"""


def started(*words: str) -> list[float]:
    """CPU seconds and KiB of Python with these words, and of what it waits for."""
    here = sys.executable
    return list(json.loads(subprocess.check_output([here, "-c", _USED, here, *words])))


def forked(request: dry_child.DryRequest) -> list[float]:
    if not (child := os.fork()):
        os._exit("findings" not in dry_child.answer(request))
    _, status, used = os.wait4(child, 0)
    assert not status
    return [used.ru_utime + used.ru_stime, used.ru_maxrss]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        draft, target = tiny_draft(Path(folder, "draft")), write_target(Path(folder, "target"))
        check = ("-c", _COMMAND, "check", str(draft), "--target", str(target))
        plan = (*check[:2], "plan", *check[3:], "-k", "3", "--gpu-mem", "80")
        runs = {"cold": check, "--quick": (*check, "--quick"), "plan": plan}
        runs["import"] = ("-c", "import vllm.engine.arg_utils")
        costs = {name: min(started(*words) for _ in range(3)) for name, words in runs.items()}
        asked = json.dumps({"model": str(draft), "num_speculative_tokens": 3})
        words, files = [str(target), "--speculative-config", asked], read_draft_files(str(draft))
        request = dry_child.DryRequest(words=words, draft=str(draft), files=files)
        dry_child.warm(None)
        dry_child.answer(request)
        costs["warm fork"] = min(forked(request) for _ in range(3))
    for name, (seconds, size) in costs.items():
        print(f"{name}: {seconds:.2f} CPU s, {size / 1024:.0f} MiB")
    raise SystemExit(any(costs[name][0] > most for name, most in MOST.items()))


if __name__ == "__main__":
    main()
