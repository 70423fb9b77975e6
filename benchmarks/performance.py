# SPDX-License-Identifier: Apache-2.0
"""The gated figure of docs/performance.md: `vllm-eagle bench` on a tiny pair, on a CPU.

    python -m benchmarks.performance

It is measured anew in build/performance/gated/; report.json goes to benchmarks/results/performance/, the
picture to docs/images/. `benchmarks.guard` runs other pairs with the same settings.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

BUILD = Path("build/performance")
RESULTS, PICTURES = Path("benchmarks/results/performance"), Path("docs/images")
# Engines in the process of their client, so that two cores do not wait for six processes.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

SHORT = "examples/tiny/prompts.jsonl"
ENGINE = {
    "max_model_len": 2048,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
    "max_num_seqs": 32,
}
_COMMON = "--together --no-chat-template --ignore-eos --max-tokens 48 --prompts"
DENSE = f"--target examples/tiny/target {_COMMON}"
HYBRID = f"examples/tiny/dflash --target examples/tiny/hybrid_target {_COMMON}"
POSTNORM, GATED = (f"examples/tiny/{name}" for name in ("postnorm", "gated"))

# What stock loads by halves.
GATED_BENCH = f"{DENSE} {SHORT} {GATED} -k 4 --concurrency 1 --repeats 1 --rounds 2 --num-prompts 24"


def run(bench: str, out: Path) -> int:
    """Run `vllm-eagle bench` on the tiny pairs with these arguments and the engine's own.

    Returns:
        Its exit status.
    """
    shutil.rmtree(out, ignore_errors=True)
    engine = ENGINE | ({"enable_prefix_caching": False} if "hybrid_target" in bench else {})
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "bench", *bench.split()]
    command += ["--engine", json.dumps(engine), "--out", str(out)]
    return subprocess.run(command, env=os.environ | ENVIRONMENT, check=False).returncode


def main() -> None:
    out = BUILD / "gated"
    if status := run(GATED_BENCH, out):
        raise SystemExit(status)
    RESULTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "report.json", RESULTS / "gated.json")
    shutil.copy(out / "speedup.png", PICTURES / "gated_speedup.png")


if __name__ == "__main__":
    main()
