# SPDX-License-Identifier: Apache-2.0
"""Replay's kernels on this device: `vllm-eagle selftest`, and its checks on all published shapes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.pool import Job, Outcome
from tests.support.group_check import check_groups
from vllm_eagle_ext.measure.selftest import run as selftest
from vllm_eagle_ext.measure.selftest import timing
from vllm_eagle_ext.replay.self_check.compared import error_line
from vllm_eagle_ext.replay.self_check.compared import run as check

WORKERS = 8  # most of a check's time is the compiler's
LAST = 30.0  # seconds that a worker is left for its last check
KS, REQUESTS = (3, 7), (1, 8, 32)


def run_checks() -> dict[str, Any]:
    """Check few shapes, also inside a CUDA graph and in 48 cache groups."""
    selftest.TIMED_KS = ()
    result = selftest.run_selftest(quick=True, watch=lambda name, done, total: None)
    candidates, device = selftest._kernels_here()
    if not any(checked.result.device_lost for checked in result.checks):
        result.checks += [
            selftest.Checked("48 cache groups", check_groups(each, selftest.FEW, device))
            for each in candidates
        ]
    passed = len(result.checks) - len(result.failed)
    lines = [f"{passed} of {len(result.checks)} checks passed; left out: {result.left_out}"]
    lines += [f"FAILED {checked.case}: {checked.result}" for checked in result.failed]
    return result.to_json() | {"lines": lines}


def jobs(scale: str) -> list[Job]:
    """Time kernels where there is a GPU."""
    job = Job(name="kernels", ask="time_kernels", engine={}, given={}, timed=True)
    return [job] if scale == "real" else []


def time_kernels(llm: Any) -> dict[str, Any]:
    """Time the preferred kernels and both of vLLM's, with states in fp32 and in bf16."""
    kernels = selftest._kernels_here()[0][:1]
    bandwidth = timing.copy_bandwidth()
    rows, failed = [], []
    for state, k, batch in product(selftest.STATES, KS, REQUESTS):
        try:
            case = selftest.SelfTestCase(selftest.TIMED, 1, k, state)
            rows += selftest._times_of(case, batch, kernels)
        except Exception as error:  # noqa: BLE001 - the other sizes are worth having
            failed.append(f"K {k}, {batch} requests, {state}: {error_line(error)}")
        torch.cuda.empty_cache()
    return {"copy_bandwidth": bandwidth, "times": rows, "failed": failed}


def report(done: dict[str, Outcome]) -> list[str]:
    """Give microseconds per request and layer."""
    outcome = done.get("kernels")
    if outcome is None:
        return []
    if outcome.result is None:
        return [f"times of kernels: FAILED {outcome.error[-160:]!r}"]
    return [*map(_time_line, outcome.result["times"]), *outcome.result["failed"]]


def _time_line(row: dict[str, Any]) -> str:
    per = 1e3 / (row["layers"] * row["requests"])
    names = [name for name in ("replay", "per_token", "fused") if f"{name}_ms" in row]
    times = ", ".join(f"{name} {row[f'{name}_ms'] * per:.2f}" for name in names)
    return f"K {row['k']}, {row['requests']} requests, {row['state']} states: us {times}"


def run_all_shapes(seconds: float, scale: str) -> dict[str, Any]:
    """Share all cases of the self-test among processes, which stop when the time is over."""
    until, workers = str(time.time() + seconds), WORKERS if scale == "real" else 1
    lines = [
        [sys.executable, "-m", "benchmarks.gpu.kernels", str(number), str(workers), until]
        for number in range(workers)
    ]
    processes = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for line in lines]
    results = []
    for each in processes:
        try:
            printed, _ = each.communicate(timeout=max(1.0, float(until) + LAST - time.time()))
        except subprocess.TimeoutExpired:
            each.kill()
            printed, _ = each.communicate()
        results += [json.loads(line) for line in printed.splitlines()]
    wrong = [result for result in results if not result["ok"]]
    summary = f"all shapes: {len(results)} checks, {len(wrong)} wrong"
    return {"lines": [summary, *(str(each) for each in wrong[:5])], "checks": results}


def check_part(number: int, workers: int, until: float) -> None:
    """Check a worker's share, one line of JSON each."""
    candidates, device = selftest._kernels_here()
    jobs = [(each, case) for case in selftest.cases(quick=False) for each in candidates]
    for each, case in jobs[number::workers]:
        if time.time() > until:
            return
        result = check(each, case.shapes, device)
        line = {"case": str(case), "kernels": result.kernels, "ok": result.ok}
        print(json.dumps(line if result.ok else line | {"text": str(result)[:500]}), flush=True)
        if result.device_lost:
            return
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    if sys.argv[1] == "checks":
        print(json.dumps(run_checks()))
    else:
        check_part(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
