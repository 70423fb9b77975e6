"""Runs mutants in worker processes, and says what failed with its smallest input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.fuzz.changes import Change, Generator, fresh
from tests.fuzz.corpus import corpus
from tests.fuzz.subjects import Subject, subjects
from tests.fuzz.worker import HANG
from tests.support.engine import ROOT

WORKERS = 2
BATCH = 200
SECONDS, MEGABYTES = 2, 500  # of a check


class Worker:
    """A process that runs jobs, and another one after a job that ended it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, job: Any) -> dict[str, Any]:
        if self.process is None:
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "CRITICAL"}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker"], cwd=ROOT, text=True,
                env=environment | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            if not self.process.stdout.readline():
                raise RuntimeError("a worker does not start")
        print(json.dumps(job), file=self.process.stdin, flush=True)
        if line := self.process.stdout.readline():
            return json.loads(line)
        status, self.process = self.process.wait(), None
        why = f"no end within {HANG} s" if status == -14 else f"the process ended with {status}"
        return {"failure": why, "exit": None, "seconds": HANG, "megabytes": 0, "rise": 0, "output": ""}

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


@dataclass
class Mutant:
    subject: Subject
    changes: list[Change]
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.subject.name}: {'; '.join(change.label for change in self.changes)}"

    @property
    def failure(self) -> str:
        answer = self.answer
        if answer["failure"] or answer["seconds"] > SECONDS:
            return answer["failure"] or f"more than {SECONDS} s"
        return f"more than {MEGABYTES} MB" if answer["megabytes"] > MEGABYTES else ""


class Fuzzer:
    def __init__(self, seed: int, root: Path) -> None:
        self.root, self.numbers = root, count()
        self.generator = Generator(seed, subjects(root / "subjects"))
        self.workers: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(WORKERS):
            self.workers.put(Worker())
        with ThreadPoolExecutor(WORKERS) as pool:
            self.unbroken = list(pool.map(self.run, (Mutant(s, []) for s in self.generator.subjects)))

    def run(self, mutant: Mutant) -> Mutant:
        """Check it; test_wrong_types.py compares with starts."""
        folder = self.root / str(next(self.numbers))
        case = fresh(mutant.subject)
        for change in mutant.changes:
            with suppress(LookupError, TypeError):  # an earlier change took its place away
                change.apply(case)
        worker = self.workers.get()
        try:
            mutant.answer = worker.run(case.write(folder))
        finally:
            self.workers.put(worker)
        shutil.rmtree(folder)
        return mutant

    def close(self) -> None:
        for _ in range(WORKERS):
            self.workers.get().close()


@dataclass(frozen=True)
class Report:
    mutants: list[Mutant]
    keys: int  # of all families' configs
    seconds: float

    @property
    def failed(self) -> dict[str, list[Mutant]]:
        return _by_kind((m.failure, m) for m in self.mutants)

    @property
    def families(self) -> Counter[str]:
        """Of approved mutants."""
        return Counter(m.subject.family for m in self.mutants if m.answer["exit"] == 0)

    def show(self) -> None:
        exits = Counter(mutant.answer["exit"] for mutant in self.mutants)
        slowest = max(self.mutants, key=lambda m: m.answer["seconds"])
        largest = max(self.mutants, key=lambda m: m.answer["megabytes"])
        print(
            f"{len(self.mutants)} mutants over {self.keys} keys in {self.seconds:.0f} s: "
            f"{exits[0]} approved, {exits[1]} refused, {exits[2]} input errors\n"
            f"slowest {slowest.answer['seconds']:.2f} CPU s: {slowest.label}\n"
            f"most memory {largest.answer['megabytes']:.0f} MB "
            f"(a rise of {max(m.answer['rise'] for m in self.mutants):.0f} MB at most)\n"
            f"approved, by family: {dict(sorted(self.families.items()))}"
        )
        _show("FAILED", self.failed)


def _by_kind(pairs: Iterable[tuple[str, Mutant]]) -> dict[str, list[Mutant]]:
    kinds: dict[str, list[Mutant]] = {}
    for kind, mutant in pairs:
        if kind:
            kinds.setdefault(kind, []).append(mutant)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


def _show(title: str, kinds: dict[str, list[Mutant]]) -> None:
    for kind, mutants in kinds.items():
        smallest = min(mutants, key=lambda m: (len(m.changes), len(m.label)))
        print(f"{title}, {len(mutants)} times: {kind}\n  smallest: {smallest.label}")


def fuzz(seed: int, mutants: int | None = None, seconds: float | None = None) -> Report:
    """Run so many mutants, or as many as fit."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        fuzzer = Fuzzer(seed, Path(root))
        try:
            tried = list(fuzzer.unbroken)
            with ThreadPoolExecutor(WORKERS) as pool:
                tried += pool.map(fuzzer.run, (Mutant(*pair) for pair in corpus(fuzzer.generator.tiny)))
                begun = time.monotonic()
                for begin in count(0, BATCH):
                    late = seconds is not None and time.monotonic() - begun > seconds
                    if late or (mutants is not None and begin >= mutants):
                        break
                    end = min(begin + BATCH, mutants or begin + BATCH)
                    drawn = (Mutant(*fuzzer.generator.draw(index)) for index in range(begin, end))
                    tried += pool.map(fuzzer.run, drawn)
        finally:
            fuzzer.close()
    return Report(tried, len(fuzzer.generator.keys), time.monotonic() - started)
