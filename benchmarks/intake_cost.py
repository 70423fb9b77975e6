# SPDX-License-Identifier: Apache-2.0
"""What the intake adds to an engine's start, and what `vllm-eagle check` takes, on drafts of true size.

python -m benchmarks.intake_cost
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.published import Published, materialise, published, write_target
from vllm_eagle_ext.checkpoint import Setting, TargetFacts, inspect_draft, read_draft_files

REPEATS = 7


def inspect_s(draft: Published, folder: Path) -> float:
    start = time.perf_counter()
    setting = Setting(method=draft.method, k=draft.k, max_model_len=4096)
    inspect_draft(read_draft_files(str(folder)), TargetFacts.from_config(draft.target), setting)
    return time.perf_counter() - start


def check_s(draft: Path, target: Path) -> float:
    start = time.perf_counter()
    command = [
        str(Path(sys.executable).parent / "vllm-eagle"),
        "check",
        str(draft),
        "--target",
        str(target),
    ]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def main() -> None:
    spans = {}
    with tempfile.TemporaryDirectory() as folder:
        for draft in published():
            place = materialise(draft, Path(folder, draft.slug))
            spans[draft.slug] = statistics.median(inspect_s(draft, place) for _ in range(REPEATS))
        slowest = max(spans, key=spans.__getitem__)
        draft = next(draft for draft in published() if draft.slug == slowest)
        target = write_target(draft, Path(folder, "target"))
        checks = [check_s(Path(folder, slowest), target) for _ in range(REPEATS)]
    print(f"{len(spans)} drafts, each the median of {REPEATS}:")
    print(f"  intake: median {statistics.median(spans.values()) * 1e3:.0f} ms")
    print(f"  intake: slowest {spans[slowest] * 1e3:.0f} ms ({slowest})")
    print(f"  vllm-eagle check on that one, as a process: {statistics.median(checks) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
