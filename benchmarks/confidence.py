# SPDX-License-Identifier: Apache-2.0
"""Whether a draft's own confidence tells which of its tokens to verify, on a tiny pair.

    python -m benchmarks.confidence --pair dense|hybrid [--cut-off] [--write]

Without `--cut-off`: top-1 probability against acceptance of greedy drafts, and what rules that cut a
draft's tail would keep. With it: one engine takes turns between drafts cut at a running product and
every fixed K, in tokens per second of the processor. `--write` puts figures into docs/confidence.md.
"""

from __future__ import annotations

import json
import random
import statistics
from enum import StrEnum
from typing import Annotated, Any

import typer

from benchmarks.calibration import summary
from benchmarks.confidence_engine import PAIRS, Arm, record, start, tokens_per_cpu_s
from benchmarks.confidence_page import cut_off_table, result_file, rules_table, write_page
from benchmarks.machine import machine
from tests.support.engine import TINY
from vllm_eagle_ext.measure.engine.machine import OtherWork, cores

CUT_OFF = 0.05
LONGEST_PROMPT = 64  # tokens
REQUESTS = (1, 4, 16, 32)

Name = StrEnum("Name", list(PAIRS))


def prompts(target: str) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / target)
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    return [tokenizer(json.loads(line)["text"])["input_ids"][:LONGEST_PROMPT] for line in lines]


def calibrated(pair: str, texts: int, tokens: int) -> dict[str, Any]:
    llm, scheduler = start(PAIRS[pair], 16)
    drafts = record(llm, scheduler, prompts(PAIRS[pair].target)[:texts], tokens)
    return {"texts": texts, "tokens": tokens, **summary(drafts)}


def interleaved(
    pair: str, requests: tuple[int, ...], rounds: int, steps: int
) -> dict[int, dict[str, list[float]]]:
    """Return requests -> arm -> tokens per CPU-second of each round. Arms take turns in random order."""
    llm, scheduler = start(PAIRS[pair], max(requests))
    longest = PAIRS[pair].speculative["num_speculative_tokens"]
    arms = [*map(Arm, PAIRS[pair].lengths), Arm(longest, CUT_OFF)]
    texts, choose = prompts(PAIRS[pair].target), random.Random(0)
    rates: dict[int, dict[str, list[float]]] = {n: {arm.name: [] for arm in arms} for n in requests}
    for turn in range(rounds + 1):
        for n in requests:
            asked = choose.sample(texts, n)
            for scheduler.arm in choose.sample(arms, len(arms)):
                rate = tokens_per_cpu_s(llm, scheduler, asked, steps)
                if turn:  # the first round warms up
                    rates[n][scheduler.arm.name].append(rate)
    return rates


def against_fixed(rates: dict[str, list[float]], least: int) -> dict[str, Any]:
    """Compare the cut-off with the fixed K of at least `least` whose median is best, round by round."""
    fixed = {
        name: statistics.median(found)
        for name, found in rates.items()
        if name.startswith("K=") and int(name[2:]) >= least
    }
    best = max(fixed, key=fixed.__getitem__)
    ratios = [a / b for a, b in zip(rates["cut-off"], rates[best], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {"best": best, "ratio": statistics.median(ratios), "quartiles": [low, high]}


def tried(pair: str, requests: tuple[int, ...], rounds: int, steps: int) -> dict[str, Any]:
    with OtherWork().during() as other:
        rates = interleaved(pair, requests, rounds, steps)
    return {
        "cut_off": CUT_OFF,
        "rounds": rounds,
        "steps": steps,
        "cores": cores(),
        "cores_of_others": round(other.cores, 2),
        "requests": {
            str(n): {
                "tokens_per_cpu_s": {name: statistics.median(each) for name, each in found.items()},
                "over_best_drafting": against_fixed(found, 1),
                "over_best": against_fixed(found, 0),
            }
            for n, found in rates.items()
        },
    }


def main(
    pair: Annotated[Name, typer.Option(help="Which tiny pair.")],
    cut_off: Annotated[bool, typer.Option("--cut-off", help="Try a cut-off.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write result, picture and page.")] = False,
    texts: Annotated[int, typer.Option(help="Prompts of a calibration.", min=1)] = 120,
    tokens: Annotated[int, typer.Option(help="Tokens behind each.", min=8)] = 96,
    requests: Annotated[str, typer.Option(help="Of a cut-off.")] = ",".join(map(str, REQUESTS)),
    rounds: Annotated[int, typer.Option(help="Of a cut-off.", min=2)] = 10,
    steps: Annotated[int, typer.Option(help="Timed per arm and round.", min=1)] = 24,
) -> None:
    command = f"python -m benchmarks.confidence --pair {pair.value}"
    if cut_off:
        command += " --cut-off"
        loads = tuple(int(each) for each in requests.split(","))
        found = tried(pair.value, loads, rounds, steps)
    else:
        found = calibrated(pair.value, texts, tokens)
    found = {"command": f"{command} --write", "machine": machine(), "pair": pair.value, **found}
    print(cut_off_table(found) if cut_off else rules_table(found))
    print(
        json.dumps({name: found[name] for name in found if name not in ("curves", "rules", "requests")})
    )
    if write:
        result_file(pair.value, cut_off=cut_off).write_text(json.dumps(found, indent=1) + "\n")
        write_page()


if __name__ == "__main__":
    typer.run(main)
