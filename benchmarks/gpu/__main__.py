# SPDX-License-Identifier: Apache-2.0
"""Run all stages on this machine's GPU, in the order of their value.

    python -m benchmarks.gpu OUT --minutes 12
    python -m benchmarks.gpu OUT --scale tiny     # without a GPU: proves that every stage is reached

machine   card, driver, versions, which of vLLM's compiled parts load
kernels   replay's kernels against vLLM's own and fp64, in CUDA graphs and in 48 cache groups
engines   tiny pairs: texts and acceptance; times of kernels; steps at a quarter of Qwen3.6-27B
shapes    replay's kernels on all published shapes
tests     this repository's tests of Model Runner V2

Each stage writes OUT/STAGE.json when it ends, engines each time that one ends. A stage that fails is
reported, and the next one runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu import kernels, pool, steps, texts

ROOT = Path(__file__).resolve().parents[2]
V2_TESTS = ("test_v2.py", "test_v2_hybrid.py")
# Minutes of a machine that has never run this: most go to imports and compilers.
SHARES = {"machine": 0.05, "kernels": 0.15, "engines": 0.5, "shapes": 0.1, "tests": 0.2}

Report = dict[str, Any]


def ask_process(seconds: float, *words: str) -> Report:
    """Ask a process that prints JSON last; it is another one, so that a broken CUDA stays there."""
    line = [sys.executable, "-m", *words]
    run = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, timeout=max(seconds, 60), check=False
    )
    if run.returncode:
        return {"error": run.stderr[-1500:]}
    report: Report = json.loads(run.stdout.splitlines()[-1])
    return report


def run_engines(seconds: float, scale: str, out: Path) -> Report:
    """Serve all pairs; those whose time counts take turns while no other is built."""

    def report(done: dict[str, pool.Outcome]) -> Report:
        lines = [*texts.report(done), *kernels.report(done), *steps.report(done)]
        return {"lines": lines, "engines": {name: outcome.to_json() for name, outcome in done.items()}}

    def store(done: dict[str, pool.Outcome]) -> None:
        write(out, "engines", report(done))

    with tempfile.TemporaryDirectory() as folder:
        hybrids, dense = texts.jobs(scale)
        first, others = steps.jobs(scale, Path(folder) / "models")
        jobs = [*kernels.jobs(scale), *hybrids, *first, *others, *dense]
        at_once = 8 if scale == "real" else 1
        return report(pool.run(jobs, seconds, Path(folder) / "engines", store, at_once))


def run_tests(seconds: float, scale: str) -> Report:
    """Run the V2 tests of tests/e2e; without a GPU they are collected only."""
    line = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-x"]
    line += [f"tests/e2e/{name}" for name in V2_TESTS] + (["--collect-only"] if scale != "real" else [])
    try:
        run = subprocess.run(
            line, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as stopped:
        return {"error": "out of time", "end": str(stopped.stdout)[-1500:]}
    report: Report = {"lines": run.stdout.splitlines()[-5:], "exit_status": run.returncode}
    return report | ({"error": "a test failed"} if run.returncode else {})


def write(out: Path, stage: str, report: Report) -> None:
    (out / f"{stage}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def run_stage(name: str, stage: Callable[[], Report]) -> Report:
    """Run one stage; what it raises is its report."""
    started = time.monotonic()
    try:
        report = stage()
    except Exception as error:  # noqa: BLE001 - the next stage is worth having
        report = {"error": f"{type(error).__name__}: {error}"[:1500]}
    report["seconds"] = round(time.monotonic() - started, 1)
    print(f"== {name}: {report['seconds']} s {report.get('error', '')}", flush=True)
    print("\n".join(report.get("lines", [])), flush=True)
    return report


def main(
    out: Annotated[Path, typer.Argument(help="A folder for the JSON files.")],
    minutes: Annotated[float, typer.Option(min=1, help="Stop after so many.")] = 12,
    only: Annotated[str, typer.Option(help="Stages, such as kernels,engines.")] = ",".join(SHARES),
    scale: Annotated[str, typer.Option(help="real, or tiny: any machine.")] = "real",
) -> None:
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": _python_path()}
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1" if scale == "real" else "0")
    if find_spec("flashinfer") is None:  # whose sampler vLLM takes on CUDA without looking
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    stages: dict[str, Callable[[float], Report]] = {
        "machine": lambda seconds: ask_process(seconds, "benchmarks.gpu.parts"),
        "kernels": lambda seconds: ask_process(seconds, "benchmarks.gpu.kernels", "checks"),
        "engines": lambda seconds: run_engines(seconds, scale, out),
        "shapes": lambda seconds: kernels.run_all_shapes(seconds, scale),
        "tests": lambda seconds: run_tests(seconds, scale),
    }
    wanted = only.split(",")
    if not set(wanted) <= set(stages):
        raise typer.BadParameter(f"--only {only}: allowed are {', '.join(stages)}")
    until = time.monotonic() + 60 * minutes
    for place, name in enumerate(wanted):
        # What earlier stages left over is shared by the later ones.
        left, shares = until - time.monotonic(), [SHARES[later] for later in wanted[place:]]
        seconds = left * SHARES[name] / sum(shares)
        if seconds < 5:
            report: Report = {"error": "no time was left"}
            print(f"== {name}: {report['error']}", flush=True)
        else:
            report = run_stage(name, partial(stages[name], seconds))
        write(out, name, report)


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


if __name__ == "__main__":
    typer.run(main)
