# SPDX-License-Identifier: Apache-2.0
"""Times of verify and commit on GPUs, modelled from the kernels' machine code. Needs no GPU.

    python -m benchmarks.kernel_model --target 27B --tp 1 --state fp32 --k 15 --device H
    python -m benchmarks.kernel_model --write        # everything: the JSON, the page, the plugin's table

Triton compiles each kernel for sm_80, sm_90, sm_100 and sm_120 as it would be launched, nvdisasm gives
its instructions, and each basic block counts as often as its loops run. A kernel's time is the largest
of

- bytes: what it must move, each byte once, at the peak bandwidth of the device;
- issue: instructions of all warps on the busiest multiprocessor, four per clock;
- each pipe of a multiprocessor: fp32, integer and logic, integer products, special functions, shuffles
  and memory together (one instruction per clock, more for more than 128 bytes), tensor cores;
- latency: rounds of resident CTAs times the clocks of one warp, in order, that waits only for what it
  reads.

Assumptions. Nothing was measured. Parts overlap perfectly, so that a time is the least that the code
allows; a *likely* time, for comparing kernels that different resources bind, grants 90 % of the
bandwidth and 75 % of what a multiprocessor can issue. Bank conflicts, cache misses of instructions and
the gaps between kernels do not count. All requests have 1 + K rows, `facts.COMMITTED` says how many are
committed; no step crosses a block boundary. Trip counts, bytes and launches of each kernel: `facts.py`.
Clocks and peak figures: `machine.py`, `latency.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Of a process in which Triton compiles: vLLM hides its kernels where Triton finds no driver."""
    path = f"{ROOT / 'tests/support/triton_cpu'}{os.pathsep}{ROOT}"
    return dict(os.environ, PYTHONPATH=path, TRITON_INTERPRET="0", TRITON_DEFAULT_FP_FUSION="1")
