# SPDX-License-Identifier: Apache-2.0
"""Measures `draft_length: "auto"` beside no draft and beside each K, on a tiny pair and a CPU.

    python -m benchmarks.draft_lengths --pair dense --rounds 5 --tokens 48 --write

What was measured lies in build/draft_lengths/<pair>.json; --write takes it to benchmarks/results/ and
writes docs/draft_lengths.md and its picture.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.draft_lengths.lengths_page import part_of, result_file, write_page
from benchmarks.draft_lengths.lengths_result import LengthsResult
from benchmarks.draft_lengths.lengths_run import LengthsRun, forecast_s
from benchmarks.draft_lengths.tiny_pairs import PAIRS, Amount, settle_pair
from benchmarks.machine import machine
from benchmarks.performance import ENVIRONMENT
from vllm_eagle_ext.measure.announce import busy_warning, duration
from vllm_eagle_ext.measure.engine.machine import cores, load_average

BUILD = Path("build/draft_lengths")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    usual = Amount()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_lengths")
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--starts", type=int, default=usual.starts, help="of all engines")
    parser.add_argument("--tokens", type=int, default=usual.tokens, help="of a request and load")
    parser.add_argument("--texts", type=int, default=usual.texts, help="of a cell, at least")
    parser.add_argument("--loads", type=_numbers, default=usual.requests, help="requests, as in 1,4,16")
    parser.add_argument("--contexts", type=_numbers, default=usual.contexts, help="as in 64,512")
    parser.add_argument(
        "--steps", type=int, default=usual.first_steps, help='of "auto" at each load, before it counts'
    )
    parser.add_argument("--write", action="store_true", help="write results, page and picture")
    parser.add_argument("--root", type=Path, default=Path(), help="where --write does")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    # One thread, so that none waits for another in processor time, and the core in the engine's process.
    os.environ.update({"OMP_NUM_THREADS": "1", **ENVIRONMENT})
    amount = Amount(
        requests=options.loads, contexts=options.contexts, rounds=options.rounds,
        starts=options.starts, tokens=options.tokens,
        texts=options.texts, first_steps=options.steps,
    )  # fmt: skip
    settings, tune, prompts = settle_pair(options.pair, amount)
    for line in busy_warning():
        print(line)
    print(f"About {duration(forecast_s(settings, tune))}; told again after each round.", flush=True)
    started, load = datetime.now(UTC).isoformat(timespec="seconds"), load_average()
    cells = LengthsRun(settings, tune, prompts).run(BUILD / f"{options.pair}_logs")
    result = LengthsResult(
        command=_command(options), started=started, machine=machine(), cores=cores(), load_average=load,
        settings=settings, cells=cells,
    )  # fmt: skip
    result.save(BUILD / f"{options.pair}.json")
    print(part_of(result))
    if options.write:
        result.save(options.root / result_file(options.pair))
        write_page(options.root)


def _command(options: argparse.Namespace) -> str:
    """The command that measures the same again."""
    words = ["python", "-m", "benchmarks.draft_lengths", "--pair", options.pair]
    words += ["--rounds", str(options.rounds), "--starts", str(options.starts)]
    words += ["--tokens", str(options.tokens)]
    usual = Amount()
    for name, value, other in (
        ("--loads", options.loads, usual.requests),
        ("--contexts", options.contexts, usual.contexts),
        ("--texts", (options.texts,), (usual.texts,)),
        ("--steps", (options.steps,), (usual.first_steps,)),
    ):
        if value != other:
            words += [name, ",".join(map(str, value))]
    return shlex.join([*words, "--write"])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(word) for word in text.split(",")}))


if __name__ == "__main__":
    main()
