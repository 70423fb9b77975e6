"""Draws texts by every rule of `draft_cuts`: vLLM's kernels for a CPU are put in place once per process.

python -m tests.support.draft_cuts_process JOB RESULT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.support.draft_cuts import BIASED, LOSSLESS, sample


def main() -> None:
    from vllm.platforms import current_platform

    job = json.loads(Path(sys.argv[1]).read_text())
    current_platform.register_triton_kernel_overrides()
    results = {}
    for name, rule in (LOSSLESS | BIASED).items():
        for greedy in (False, True):
            torch.manual_seed(job["seed"])
            texts, kept = sample(rule, job["size"], greedy)
            results[f"{name}, {'greedy' if greedy else 'sampled'}"] = {"texts": texts, "kept": kept}
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
