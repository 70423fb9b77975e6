"""`python -m tests.soak --minutes 15`: a served draft under mixed load, with clients that go away.

Starts `vllm serve` on the loopback interface and stops it. Exit status 0: every bound holds.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tests.soak import report, watch
from tests.soak.client import Load, Tally, ask_alone
from tests.soak.mix import Mix
from tests.support.engine import TINY
from tests.support.near_ties import NEAR_TIE_GAP
from tests.support.server import Server

WIDTH = 64
# A KV-cache block holds 128 tokens: 64 requests want more than there is, so that some are preempted.
PAGES = 100


class Target(StrEnum):
    tiny = "tiny"  # post-norm EAGLE-3 on a dense target
    hybrid = "hybrid"  # DFlash on gated delta nets, states kept by replay


def server(target: Target, log: Path) -> Server:
    load = ["--max-num-seqs=64", "--max-num-batched-tokens=1024"]
    if target is Target.tiny:
        # In float32, where answers in company are those alone but for rounding in the last digits.
        arguments = [*load, "--dtype=float32", f"--num-gpu-blocks-override={PAGES}"]
        return Server(draft=TINY / "postnorm", k=4, log=log, arguments=arguments)
    arguments = [*load, "--no-enable-prefix-caching"]
    arguments += ["--additional-config", json.dumps({"eagle_ext": {"hybrid_state": "replay"}})]
    return Server(
        draft=TINY / "dflash",
        k=7,
        log=log,
        arguments=arguments,
        target=TINY / "hybrid_target",
        method="dflash",
    )


# Log-probabilities of float32 states apart from those of other batch shapes: rounding only.
GAPS = {Target.tiny: 0.001, Target.hybrid: NEAR_TIE_GAP}


def excerpts() -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    return [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]


async def load(running: Server, mix: Mix, seconds: float) -> tuple[Tally, list[watch.Sample]]:
    asking = Load(running.url, mix, ask_alone(running.url, mix.jobs))
    samples: list[watch.Sample] = []
    watching = watch.watch(running.root_url, running.process.pid, samples, seconds)
    await asyncio.gather(watching, asking.run(WIDTH, seconds))
    return asking.tally, samples


def main(
    minutes: Annotated[float, typer.Option(min=0.5)] = 15,
    target: Target = Target.tiny,
    seed: int = 0,
    log: Annotated[Path | None, typer.Option(help="Where the server's log goes.")] = None,
) -> None:
    """A soak of a served draft."""
    with tempfile.TemporaryDirectory() as folder:
        log = log or Path(folder, "server.log")
        with server(target, log) as running:
            tally, samples = asyncio.run(load(running, Mix(excerpts(), seed), minutes * 60))
            idle = watch.settle(running.root_url, running.url)
            said = log.read_text()  # vLLM logs a traceback when it is stopped
        outcome = report.conclude(tally, samples, idle, said, GAPS[target])
    report.show(outcome, f"{minutes:g} minutes, {WIDTH} requests at a time, target {target}")
    raise SystemExit(0 if outcome.holds else 1)


if __name__ == "__main__":
    typer.run(main)
