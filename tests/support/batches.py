"""Real vLLM engines in a process of their own, several batches on each: what was said and drafted.

A process per call keeps environments apart (V1 or V2 runner, Triton's interpreter) and ends with it; the
engines of a call start one after the other in it, which takes seconds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.engine import IN_PROCESS, TINY, EngineFailedError, engine_environment, run_child

TIMEOUT_S = 3000  # with AVX2
PLACED, RECORDED = "placed", "recorded"  # drafts by the length of their text, and in their order
Prompt = list[int] | dict[str, Any]  # token ids, or "prompt" and "image", the seed of a picture


@dataclass(frozen=True)
class Oracle:
    """Replaces drafts by known texts: they are right for as many tokens as `right` says."""

    texts: str | list[list[int]]  # or an earlier engine: what it was asked last, and said
    right: str = "random"
    vocab: int = 1536


@dataclass(frozen=True)
class Batch:
    """Its prompts are its own, or those of an earlier batch of the engine with their texts behind."""

    name: str
    prompts: Sequence[Prompt] = field(default_factory=list)
    follows: str | None = None
    then: list[int] = field(default_factory=list)  # behind each followed text
    max_tokens: int | list[int] | None = 32  # None: to the end of max_model_len
    concurrency: int | None = None  # requests at a time
    joins: list[int] = field(default_factory=list)  # per prompt: the step before which it is added
    aborts: dict[str, int] = field(default_factory=dict)  # request's number -> steps
    cold: bool = False  # the prefix cache is emptied first
    logprobs: int | None = None
    lora: list[Path | None] = field(default_factory=list)  # per prompt: the folder of an adapter
    asked: list[dict[str, Any]] = field(default_factory=list)  # per prompt: as in `kinds`, over greedy
    oracle: Oracle | None = None  # from this batch on
    states: bool = False  # those that the draft is handed for the first prompt
    whole: bool = False  # answers with their words, beside the tokens
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings that are, by name


@dataclass(frozen=True)
class Engine:
    name: str
    batches: list[Batch]
    speculative: dict[str, Any] | None = None
    engine_args: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # additional_config.eagle_ext
    target: Path = TINY / "target"
    drafts: str | None = PLACED  # how they are written down
    kernels: str | None = None  # Triton's of this name, in place of vLLM's C++ kernel
    broken: str | None = None  # from the first request on
    broken_at_start: str | None = None  # before the engine is built, which checks itself
    use: str | None = None  # a module whose `serve` uses the engine in place of batches
    job: dict[str, Any] = field(default_factory=dict)  # for it


def eagle3(name: str, k: int) -> dict[str, Any]:
    return {"method": "eagle3", "model": str(TINY / name), "num_speculative_tokens": k}


def start_engines(
    engines: Sequence[Engine], runner: str = "v1", **environment: str
) -> tuple[dict[str, Any], str]:
    """Engine -> batch -> result, or "error" and "trace" of an engine that failed; and what was printed.

    Raises:
        EngineFailedError: the process ended without results.
    """
    return run_child(
        "engine_process",
        [asdict(engine) for engine in engines],
        environment=engine_environment(runner) | IN_PROCESS | environment,
        timeout_s=TIMEOUT_S,
    )


def run_engines(engines: Sequence[Engine], runner: str = "v1", **environment: str) -> dict[str, Any]:
    """As `start_engines`, of engines that must not fail.

    Raises:
        EngineFailedError: the process ended without results, or an engine failed.
    """
    results, log = start_engines(engines, runner, **environment)
    for name, run in results.items():
        if "error" in run:
            raise EngineFailedError(f"{log[-3000:]}\n{name}: {run['trace']}")
    return results


def difference(after: Any, before: Any) -> Any:
    """Of a counter, or of those per position."""
    if isinstance(after, list):
        before = before or [0] * len(after)
        return [a - b for a, b in zip(after, before, strict=True)]
    return after - (before or 0)


def section(log: str, name: str) -> str:
    """What was printed while this engine ran."""
    return log.partition(f"=== {name}\n")[2].partition("\n=== ")[0]


def drafts_of(result: dict[str, Any]) -> list[dict[int, list[int]]]:
    """Per prompt: length of the text -> drafted ids."""
    return [{int(length): row for length, row in rows.items()} for rows in result["placed"]]


def differing(left: dict[str, Any], right: dict[str, Any], *, at_least: int) -> int:
    """Count the drafts of the same texts at the same lengths that differ."""
    texts = zip(drafts_of(left), drafts_of(right), strict=True)
    both = [(one[n], other[n]) for one, other in texts for n in one.keys() & other.keys()]
    different = sum(a != b for a, b in both)
    print(f"\n{different} of {len(both)} drafts differ")
    assert len(both) >= at_least
    return different
