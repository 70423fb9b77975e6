# SPDX-License-Identifier: Apache-2.0
"""What the preflight adds to an engine's start, and what `vllm-eagle check` takes.

    python -m benchmarks.preflight_cost

The rules on drafts of true size, each several times in one process; and the whole span around vLLM's own
builder, once per process and thus with the package's imports, on the tiny pairs.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import machine
from tests.support.engine import ROOT, TINY, engine_environment

if TYPE_CHECKING:
    from tests.support.published import Published

# Nothing of this package is imported up here: a start's span holds the import of it.
_IMPORTED_BY_A_START = ("vllm_eagle_ext.preflight", "vllm_eagle_ext.checkpoint")
RESULTS = Path(__file__).parent / "results"
REPEATS = 7
PAIRS = {
    "native": ("eagle3", "target", 4),
    "postnorm": ("eagle3", "target", 4),
    "gated": ("eagle3", "target", 4),
    "dflash": ("dflash", "hybrid_target", 7),
}


def inspect_s(draft: Published, folder: Path) -> float:
    from vllm_eagle_ext.checkpoint import Setting, TargetFacts, inspect_draft, read_draft_files

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


def spans_of_a_start(draft: str) -> None:
    """Prints the seconds of vLLM's builder, and of all around it, for one EngineArgs of this process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    spans: dict[str, float] = {}
    _time(EngineArgs, "vllm", spans)
    load_general_plugins()  # wraps the builder, but imports the preflight at its first call
    _time(EngineArgs, "whole", spans)
    imported = [name for name in sys.modules if name.startswith(_IMPORTED_BY_A_START)]
    if imported:
        raise RuntimeError(f"the span would lack the import of {', '.join(imported)}")
    method, target, k = PAIRS[draft]
    speculative = {"method": method, "model": str(TINY / draft), "num_speculative_tokens": k}
    EngineArgs(
        model=str(TINY / target), speculative_config=speculative, enable_prefix_caching=False
    ).create_engine_config()
    print(json.dumps(spans))


def _time(engine_args: Any, name: str, spans: dict[str, float]) -> None:
    """Time its builder as it is now."""
    build = engine_args.create_speculative_config

    @functools.wraps(build)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return build(*args, **kwargs)
        finally:
            spans[name] = time.perf_counter() - start

    engine_args.create_speculative_config = timed


def start_spans(draft: str) -> dict[str, float]:
    found = []
    for _ in range(REPEATS):
        command = [sys.executable, "-m", "benchmarks.preflight_cost", draft]
        printed = subprocess.run(
            command, cwd=ROOT, env=engine_environment("v1"), capture_output=True, text=True, check=True
        ).stdout
        spans = json.loads(printed.splitlines()[-1])
        found.append((spans["whole"] - spans["vllm"], spans["vllm"]))
    ours, host = zip(*found, strict=True)
    return {
        "ours_s": statistics.median(ours),
        "ours_max_s": max(ours),
        "vllm_s": statistics.median(host),
    }


def true_sizes() -> dict[str, Any]:
    from tests.support.published import materialise, published, write_target

    spans = {}
    with tempfile.TemporaryDirectory() as folder:
        for draft in published():
            place = materialise(draft, Path(folder, draft.slug))
            spans[draft.slug] = statistics.median(inspect_s(draft, place) for _ in range(REPEATS))
        slowest = max(spans, key=spans.__getitem__)
        draft = next(draft for draft in published() if draft.slug == slowest)
        target = write_target(draft, Path(folder, "target"))
        checks = [check_s(Path(folder, slowest), target) for _ in range(REPEATS)]
    return {
        "drafts": len(spans),
        "median_s": statistics.median(spans.values()),
        "slowest": slowest,
        "slowest_s": spans[slowest],
        "check_of_slowest_s": statistics.median(checks),
    }


def main() -> None:
    if len(sys.argv) > 1:
        spans_of_a_start(sys.argv[1])
        return
    found: dict[str, Any] = {"command": "python -m benchmarks.preflight_cost", "machine": machine()}
    found |= {"repeats": REPEATS, "rules": true_sizes()}
    found["start"] = {draft: start_spans(draft) for draft in PAIRS}
    (RESULTS / "preflight_cpu.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
