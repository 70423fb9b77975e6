# SPDX-License-Identifier: Apache-2.0
"""One engine, a few prompts, and how many drafted tokens were accepted at each position.

    python -m vllm_eagle_ext.cli.acceptance_run JOB RESULT

A process per engine: one that fails, or holds memory, does not touch the next.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Explain in two sentences why the sky is blue.",
    "import os\nimport sys\n\ndef main(argv):\n",
    "Once upon a time, in a small village by the sea,",
    "List the first ten prime numbers: ",
    "class Stack:\n    def __init__(self):\n",
    "Q: What is the boiling point of water at sea level?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, price FROM products WHERE",
)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """job: `engine` (keywords of LLM), `prompts`, `max_tokens`."""
    from vllm import LLM, SamplingParams

    llm = LLM(disable_log_stats=False, **job["engine"])
    params = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    llm.generate(job["prompts"], params, use_tqdm=False)
    counted: dict[str, Any] = {"drafts": 0, "accepted": []}
    for metric in llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            counted["drafts"] += int(metric.value)  # one per engine, where several serve in parallel
        elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            earlier = counted["accepted"] or [0] * len(metric.values)
            counted["accepted"] = [a + int(b) for a, b in zip(earlier, metric.values, strict=True)]
    return counted


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
