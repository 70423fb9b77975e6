# SPDX-License-Identifier: Apache-2.0
"""Builds several engines on one card at a time, each in its own process; what is timed runs by itself.

Most of an engine's start is the host's work, so engines are built side by side. One whose speed counts
then waits until no other is built or runs. One that cannot be built as vLLM would serve it (compiled, in
CUDA graphs) is tried again without torch.compile, then eagerly: `level` says what it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

LEVELS = ("compiled", "graphs", "eager")
CARD = 0.94  # share of the memory that all engines may take together
TURN = 30.0  # seconds that a timed engine is left for its turn at least
KEPT = 3000  # characters of a failed engine's log


@dataclass(frozen=True, kw_only=True)
class Job:
    """One engine and what it is asked: `engine.ASK` names the functions."""

    name: str
    ask: str
    engine: dict[str, Any]  # arguments of LLM()
    given: dict[str, Any]  # arguments of the function
    environment: dict[str, str] = field(default_factory=dict)
    memory: float = 0.03  # share of the card
    timed: bool = False
    level: str = LEVELS[0]


@dataclass(kw_only=True)
class Outcome:
    job: Job
    result: dict[str, Any] | None = None
    error: str = ""
    failed_levels: dict[str, str] = field(default_factory=dict)  # level -> end of the log

    def to_json(self) -> dict[str, Any]:
        """Leave out the texts, which the report has compared."""
        from vllm_eagle_ext.measure.selftest.run import without_paths

        result = {k: v for k, v in (self.result or {}).items() if k != "tokens"}
        kept: dict[str, Any] = {"level": self.job.level, "engine": self.job.engine, **result}
        kept |= {k: v for k, v in asdict(self).items() if k in ("error", "failed_levels") and v}
        return {key: without_paths(value) for key, value in kept.items()}


class Running:
    """A process, and the files by which it tells how far it is."""

    def __init__(self, job: Job, folder: Path, failed: dict[str, str]) -> None:
        self.job, self.failed, self.turn = job, failed, not job.timed
        self.folder = folder / f"{job.name.replace(' ', '-')}-{job.level}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("built", "go", "result.json"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "job.json").write_text(json.dumps(asdict(job)))
        self.log = (self.folder / "log").open("w+")
        line = [sys.executable, "-m", "benchmarks.gpu.engine", str(self.folder)]
        self.process = subprocess.Popen(line, stdout=self.log, stderr=subprocess.STDOUT)
        if self.turn:
            self.let_go()

    @property
    def built(self) -> bool:
        return (self.folder / "built").exists()

    def let_go(self) -> None:
        self.turn = True
        (self.folder / "go").touch()

    def outcome(self) -> Outcome:
        path = self.folder / "result.json"
        if path.exists():
            return Outcome(job=self.job, result=json.loads(path.read_text()), failed_levels=self.failed)
        self.log.seek(0)
        end = self.log.read()[-KEPT:]
        return Outcome(job=self.job, error=end, failed_levels=self.failed | {self.job.level: end})


def run(
    jobs: list[Job],
    seconds: float,
    folder: Path,
    store: Callable[[dict[str, Outcome]], None],
    at_once: int,
) -> dict[str, Outcome]:
    """Run jobs in their order as far as memory and time allow. Returns outcomes by name."""
    until = time.monotonic() + seconds
    waiting = [(job, dict[str, str]()) for job in jobs]
    running: list[Running] = []
    done: dict[str, Outcome] = {}
    try:
        while waiting or running:
            left = until - time.monotonic()
            # Those that end: an outcome, or another try at the next level.
            for each in [each for each in running if each.process.poll() is not None or left <= 0]:
                _end(each)
                running.remove(each)
                outcome = each.outcome()
                if outcome.result is None and (after := _next(each.job)) and left > TURN:
                    waiting.insert(0, (after, outcome.failed_levels))
                else:
                    done[each.job.name] = outcome
                verdict = "ok" if outcome.result is not None else "failed"
                print(f"{left:.0f} s left: {each.job.name}, {each.job.level}: {verdict}", flush=True)
                store(done)
            if left <= 0:
                break
            ready = [each for each in running if each.built and not each.turn]
            busy = [each for each in running if each.turn or not each.built]
            # Those whose speed counts: one at a time. Near the end nobody waits for what is not built.
            if ready and left < len(ready) * TURN:
                for each in [each for each in busy if not each.built]:
                    each.process.kill()
            elif ready and not busy:
                ready[0].let_go()
            # Those that wait, while the card has room and no other's speed is measured.
            while waiting and not ready and len(running) < at_once and left > TURN:
                used = sum(each.job.memory for each in running)
                if used + waiting[0][0].memory > CARD or any(
                    each.job.timed and each.turn for each in running
                ):
                    break
                job, failed = waiting.pop(0)
                running.append(Running(job, folder, failed))
            if not running and left <= TURN:
                break
            time.sleep(0.2)
    finally:
        for each in running:  # after Ctrl-C, too
            _end(each)
    for job, failed in waiting:
        done[job.name] = Outcome(job=job, error="no time was left", failed_levels=failed)
    store(done)
    return done


def _next(job: Job) -> Job | None:
    after = LEVELS.index(job.level) + 1
    return replace(job, level=LEVELS[after]) if after < len(LEVELS) else None


def _end(each: Running) -> None:
    if each.process.poll() is None:
        each.process.kill()
    each.process.wait()
