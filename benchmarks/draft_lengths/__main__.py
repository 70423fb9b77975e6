# SPDX-License-Identifier: Apache-2.0
"""Measures `draft_length: "auto"` beside no draft and beside each K, on a tiny pair and a CPU.

    python -m benchmarks.draft_lengths --pair dense --sampled 0 --write

What was measured lies in build/draft_lengths/<pair>_<prompts>.json; --write takes it to
benchmarks/results/ and writes the pair's part of docs/draft_lengths.md and its picture.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.draft_lengths.lengths_page import part_of, write_part
from benchmarks.draft_lengths.lengths_result import LengthsResult
from benchmarks.draft_lengths.lengths_run import LengthsRun, forecast_s
from benchmarks.draft_lengths.tiny_pairs import MIXES, PAIRS, Amount, settle_pair
from benchmarks.machine import machine
from benchmarks.performance import ENVIRONMENT
from vllm_eagle_ext.measure.announce import busy_warning, duration
from vllm_eagle_ext.measure.engine.machine import cores, load_average

BUILD = Path("build/draft_lengths")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    usual = Amount()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_lengths")
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument(
        "--sampled", type=float, choices=MIXES, default=usual.sampled, help="share of sampled requests"
    )
    parser.add_argument("--starts", type=int, default=usual.starts, help="of all engines, at least 2")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="of a start, load and variant")
    parser.add_argument("--tokens", type=int, default=usual.tokens, help="of a request where few decode")
    parser.add_argument("--texts", type=int, default=usual.texts, help="after which no round follows")
    parser.add_argument("--loads", type=_numbers, default=usual.requests, help="requests, as in 1,4,16")
    parser.add_argument("--contexts", type=_numbers, default=usual.contexts, help="as in 64,512")
    parser.add_argument(
        "--steps", type=int, default=usual.first_steps, help='of "auto" at a load, before it counts'
    )
    parser.add_argument("--write", action="store_true", help="write results, page and picture")
    parser.add_argument("--root", type=Path, default=Path(), help="where --write does")
    options = parser.parse_args(arguments)
    if options.starts < 2:
        parser.error("--starts: at least 2, since the best K of a start is chosen by the others")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    # One thread, so that none waits for another in processor time, and the core in the engine's process.
    os.environ.update({"OMP_NUM_THREADS": "1", **ENVIRONMENT})
    amount = Amount(
        requests=options.loads, contexts=options.contexts, sampled=options.sampled,
        starts=options.starts, rounds=options.rounds, tokens=options.tokens, texts=options.texts,
        first_steps=options.steps,
    )  # fmt: skip
    settings, tune, prompts = settle_pair(options.pair, amount)
    for line in busy_warning():
        print(line)
    print(f"About {duration(forecast_s(settings, tune))}; told again after each start.", flush=True)
    started, load = datetime.now(UTC).isoformat(timespec="seconds"), load_average()
    name = f"{options.pair}_{MIXES[options.sampled]}"
    cells = LengthsRun(settings, tune, prompts).run(BUILD / f"{name}_logs")
    result = LengthsResult(
        command=_command(options), started=started, machine=machine(), cores=cores(), load_average=load,
        settings=settings, cells=cells,
    )  # fmt: skip
    result.save(BUILD / f"{name}.json")
    print(part_of(result))
    if options.write:
        write_part(options.root, result)


def _command(options: argparse.Namespace) -> str:
    """The command that measures the same again."""
    words = ["python", "-m", "benchmarks.draft_lengths", "--pair", options.pair]
    words += ["--sampled", f"{options.sampled:g}"]
    usual = Amount()
    for name, value, other in (
        ("--starts", (options.starts,), (usual.starts,)),
        ("--rounds", (options.rounds,), (usual.rounds,)),
        ("--tokens", (options.tokens,), (usual.tokens,)),
        ("--texts", (options.texts,), (usual.texts,)),
        ("--loads", options.loads, usual.requests),
        ("--contexts", options.contexts, usual.contexts),
        ("--steps", (options.steps,), (usual.first_steps,)),
    ):
        if value != other:
            words += [name, ",".join(map(str, value))]
    return shlex.join([*words, "--write"])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(word) for word in text.split(",")}))


if __name__ == "__main__":
    main()
