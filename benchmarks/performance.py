# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/performance.md: `vllm-eagle bench` on the tiny pairs, on a CPU.

    python -m benchmarks.performance            # all of BENCHES
    python -m benchmarks.performance native     # one of them

Each is measured anew in build/performance/<name>/; report.json goes to benchmarks/results/performance/,
the picture of the gated pair to docs/images/.
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
NATIVE, POSTNORM, GATED = (f"examples/tiny/{name}" for name in ("native", "postnorm", "gated"))

# One engine of each kind per pair: one start differs from the next by more than a round from a round.
_PAIRS = "--variants stock,ours --concurrency 1,8 --repeats 10 --rounds 1 --num-prompts 24"

BENCHES = {
    # Ours against stock.
    "native": f"{DENSE} {SHORT} {NATIVE} -k 4 {_PAIRS}",
    "postnorm": f"{DENSE} {SHORT} {POSTNORM} -k 4 {_PAIRS}",
    "hybrid_per_token": f'{HYBRID} {SHORT} -k 7 {_PAIRS} --eagle-ext {{"hybrid_state":"per_token"}}',
    # What stock loads by halves.
    "gated": f"{DENSE} {SHORT} {GATED} -k 4 --concurrency 1 --repeats 1 --rounds 2 --num-prompts 24",
}


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


def keep(name: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(BUILD / name / "report.json", RESULTS / f"{name}.json")
    if name == "gated":
        shutil.copy(BUILD / name / "speedup.png", PICTURES / "gated_speedup.png")


def main() -> None:
    for name in sys.argv[1:] or BENCHES:
        if status := run(BENCHES[name], BUILD / name):
            raise SystemExit(f"{name}: exit status {status}")
        keep(name)


if __name__ == "__main__":
    main()
