# SPDX-License-Identifier: Apache-2.0
"""Acceptance and step time of a draft with `draft_window`, over the length of the context.

    python -m benchmarks.draft_window --target DIR --draft DIR [--windows 128,256] [--contexts 200,1000]

One engine per window, each in a process of its own. Behind each context the same held-out texts are
continued greedily: the text is the target's whatever the draft's window, so that all engines draft for
the same tokens. A step's CPU time is the median of those in which all requests decode, at the median
speed of the processor (`machine_speed`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.long_prompts import TINY, write_prompts
from benchmarks.machine import machine
from benchmarks.machine_speed import ReferenceWork
from tests.support.engine import IN_PROCESS, engine_environment

RESULTS = Path(__file__).parent / "results"
FULL, NONE = "full", "no draft"
ROOM = 80  # tokens behind the longest context


def decode(
    engine: Any, prompts: Sequence[list[int]], name: str, tokens: int
) -> Iterator[tuple[float, float]]:
    """Milliseconds of each step in which every request decodes, and of a piece of work behind it."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(prompts):
        engine.add_request(f"{name} {number}", {"prompt_token_ids": prompt}, params)
    begun: set[str] = set()
    work = ReferenceWork()
    while engine.has_unfinished_requests():
        begin = process_time()
        outputs = engine.step()
        spent = 1e3 * (process_time() - begin)
        if len(begun & {one.request_id for one in outputs}) == len(prompts):
            work.run()
            yield spent, 1e3 * work.last_s
        begun |= {one.request_id for one in outputs if one.outputs[0].token_ids}


def counted(llm: Any) -> tuple[int, int]:
    """Drafts and accepted drafts so far."""
    found = {metric.name: metric for metric in llm.get_metrics()}
    return tuple(
        int(found[f"vllm:spec_decode_num_{name}"].value)
        if f"vllm:spec_decode_num_{name}" in found
        else 0
        for name in ("drafts", "accepted_tokens")
    )


def measure(job: dict[str, Any], window: str) -> dict[str, Any]:
    """Of one engine: context -> acceptance length, ms a step."""
    from transformers import AutoTokenizer

    from tests.support.in_process import build, close

    tokenizer, found = AutoTokenizer.from_pretrained(job["target"]), {}
    speculative = job["speculative"] | {"model": job["draft"]} if window != NONE else None
    options = (
        job["options"] if window in (FULL, NONE) else job["options"] | {"draft_window": int(window)}
    )
    with tempfile.TemporaryDirectory() as folder:
        length = max(job["contexts"]) + ROOM
        llm = build(
            {"target": job["target"], "speculative": speculative,
             "engine_args": {"max_model_len": length, "max_num_batched_tokens": 2048} | job["engine"]},
            "", options if speculative else {},
        )  # fmt: skip
        for context in job["contexts"]:
            path = write_prompts(Path(folder, f"{context}.jsonl"), context, job["texts"])
            texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
            prompts = [tokenizer(text)["input_ids"][:context] for text in texts]
            before = counted(llm)
            steps = list(decode(llm.llm_engine, prompts, f"{window} {context}", job["tokens"]))
            spent, pieces = map(statistics.median, zip(*steps, strict=True))
            drafts, accepted = (a - b for a, b in zip(counted(llm), before, strict=True))
            found[str(context)] = {
                "length": 1 + accepted / drafts if drafts else 1.0, "drafts": drafts,
                "ms": spent, "piece_ms": pieces, "prompt": statistics.median(map(len, prompts)),
            }  # fmt: skip
        close(llm)
    return found


def at_usual_speed(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Times as if each piece of work had taken as long as the median one."""
    cells = [cell for contexts in found.values() for cell in contexts.values()]
    usual = statistics.median(cell["piece_ms"] for cell in cells)
    for cell in cells:
        cell["raw_ms"] = cell["ms"]
        cell["ms"] *= usual / cell["piece_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=str(TINY / "target"))
    parser.add_argument("--draft", default=str(TINY / "postnorm"))
    parser.add_argument("--method", default="eagle3")
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--windows", default="no draft,full,128,256,512")
    parser.add_argument("--contexts", default="200,500,1000,1500,1900")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--engine", default="{}", help="further arguments of the engine, as JSON")
    parser.add_argument("--options", default="{}", help="of additional_config.eagle_ext, as JSON")
    parser.add_argument("--write", metavar="NAME", help="write the figures under results/")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    job = {
        "target": arguments.target, "draft": arguments.draft, "texts": arguments.texts,
        "speculative": {"method": arguments.method, "num_speculative_tokens": arguments.k},
        "contexts": [int(c) for c in arguments.contexts.split(",")], "tokens": arguments.tokens,
        "engine": json.loads(arguments.engine), "options": json.loads(arguments.options),
    }  # fmt: skip
    if arguments.one:
        Path(arguments.one[1]).write_text(json.dumps(measure(job, arguments.one[0])))
        return
    # One thread, so that none waits for another in processor time.
    environment = engine_environment("v1") | IN_PROCESS | {"OMP_NUM_THREADS": "1"}
    environment |= {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for window in arguments.windows.split(","):
            out = Path(folder, "out.json")
            command = [sys.executable, "-m", "benchmarks.draft_window", *sys.argv[1:]]
            subprocess.run([*command, "--one", window, str(out)], env=environment, check=True)
            found[window] = json.loads(out.read_text())
            print(f"{window}: measured", flush=True)
    at_usual_speed(found)
    for window, contexts in found.items():
        said = (f"{c}: {v['length']:.2f} {v['ms']:.1f} ms" for c, v in contexts.items())
        print(window.ljust(10), *said, sep="  ")
    if arguments.write:
        document = {"command": " ".join(["python -m benchmarks.draft_window", *sys.argv[1:]]),
                    "machine": machine() | {"threads": 1}, "windows": found}  # fmt: skip
        path = RESULTS / f"draft_window_{arguments.write}_cpu.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
