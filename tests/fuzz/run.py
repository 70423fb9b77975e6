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

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.process: subprocess.Popen[str] | None = None

    def run(self, job: Any) -> dict[str, Any]:
        if self.process is None:
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "CRITICAL"}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker", self.kind], cwd=ROOT, text=True,
                env=environment | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            if not self.process.stdout.readline():
                raise RuntimeError("a worker does not start")
        print(json.dumps(job), file=self.process.stdin, flush=True)
        if line := self.process.stdout.readline():
            return json.loads(line)
        status, self.process = self.process.wait(), None
        why = (
            f"no end within {HANG[self.kind]} s" if status == -14 else f"the process ended with {status}"
        )
        return {
            "failure": why,
            "exit": None,
            "seconds": HANG[self.kind],
            "megabytes": 0,
            "rise": 0,
            "output": "",
        }

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


@dataclass
class Mutant:
    subject: Subject
    changes: list[Change]
    answer: dict[str, Any] = field(default_factory=dict)
    built: dict[str, Any] | None = None  # None: not tried

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
        self.kinds: dict[str, SimpleQueue[Worker]] = {}
        for kind in ("check", "build"):
            self.kinds[kind] = SimpleQueue()
            for _ in range(WORKERS):
                self.kinds[kind].put(Worker(kind))
        self.buildable = {s.name for s in self.generator.subjects if s.has_a_common_target}
        with ThreadPoolExecutor(WORKERS) as pool:
            self.unbroken = list(pool.map(self.run, (Mutant(s, []) for s in self.generator.subjects)))
        # The config of a published target may lack what vLLM reads.
        self.buildable = {m.subject.name for m in self.unbroken if m.built and not m.built["failure"]}

    def run(self, mutant: Mutant) -> Mutant:
        """Check it and, if that approves, build vLLM's config."""
        folder = self.root / str(next(self.numbers))
        case = fresh(mutant.subject)
        for change in mutant.changes:
            with suppress(LookupError, TypeError):  # an earlier change took its place away
                change.apply(case)
        mutant.answer = self._ask("check", case.write(folder))
        if mutant.answer["exit"] == 0 and case.command == "check" and not mutant.failure:
            command = _command(mutant.answer["output"])
            if command and mutant.subject.name in self.buildable and case.has_its_target:
                mutant.built = self._ask("build", command)
        shutil.rmtree(folder)
        return mutant

    def _ask(self, kind: str, job: Any) -> dict[str, Any]:
        worker = self.kinds[kind].get()
        try:
            return worker.run(job)
        finally:
            self.kinds[kind].put(worker)

    def close(self) -> None:
        for kind in self.kinds.values():
            for _ in range(WORKERS):
                kind.get().close()


def _command(output: str) -> str | None:
    """The one to paste; None for what is left to stock vLLM."""
    if output.startswith("{"):
        return json.loads(output)["command"]
    last = output.rstrip("\n").rpartition("\n")[2]
    return last if "vllm serve" in last else None


@dataclass(frozen=True)
class Report:
    mutants: list[Mutant]
    keys: int  # of all families' configs
    seconds: float

    @property
    def failed(self) -> dict[str, list[Mutant]]:
        return _by_kind((m.failure, m) for m in self.mutants)

    @property
    def built(self) -> list[Mutant]:
        """The approved mutants of which vLLM's config was tried."""
        return [mutant for mutant in self.mutants if mutant.built is not None]

    @property
    def not_built(self) -> dict[str, list[Mutant]]:
        return _by_kind((m.built["failure"], m) for m in self.built)

    @property
    def families(self) -> Counter[str]:
        return Counter(mutant.subject.family for mutant in self.built)

    def show(self) -> None:
        exits = Counter(mutant.answer["exit"] for mutant in self.mutants)
        slowest = max(self.mutants, key=lambda m: m.answer["seconds"])
        largest = max(self.mutants, key=lambda m: m.answer["megabytes"])
        failed = sum(map(len, self.not_built.values()))
        print(
            f"{len(self.mutants)} mutants over {self.keys} keys in {self.seconds:.0f} s: "
            f"{exits[0]} approved, {exits[1]} refused, {exits[2]} input errors\n"
            f"slowest {slowest.answer['seconds']:.2f} CPU s: {slowest.label}\n"
            f"most memory {largest.answer['megabytes']:.0f} MB "
            f"(a rise of {max(m.answer['rise'] for m in self.mutants):.0f} MB at most)\n"
            f"configs built: {len(self.built) - failed} of {len(self.built)} approved, by family "
            f"{dict(sorted(self.families.items()))}"
        )
        _show("FAILED", self.failed)
        _show("approved, not built", self.not_built)


def _by_kind(pairs: Iterable[tuple[str, Mutant]]) -> dict[str, list[Mutant]]:
    found: dict[str, list[Mutant]] = {}
    for kind, mutant in pairs:
        if kind:
            found.setdefault(kind, []).append(mutant)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


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
            found = list(fuzzer.unbroken)
            with ThreadPoolExecutor(WORKERS) as pool:
                found += pool.map(fuzzer.run, (Mutant(*one) for one in corpus(fuzzer.generator.tiny)))
                begun = time.monotonic()
                for begin in count(0, BATCH):
                    late = seconds is not None and time.monotonic() - begun > seconds
                    if late or (mutants is not None and begin >= mutants):
                        break
                    end = min(begin + BATCH, mutants or begin + BATCH)
                    drawn = (Mutant(*fuzzer.generator.draw(index)) for index in range(begin, end))
                    found += pool.map(fuzzer.run, drawn)
        finally:
            fuzzer.close()
    return Report(found, len(fuzzer.generator.keys), time.monotonic() - started)
