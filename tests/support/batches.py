"""Several engines in one process, several batches on each: what was said and drafted at which length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.engine import IN_PROCESS, TINY, EngineFailedError, engine_environment, run_child

TIMEOUT_S = 1500


@dataclass(frozen=True)
class Batch:
    """Its prompts are its own, or those of an earlier batch of the engine with their texts behind."""

    name: str
    prompts: list[list[int]] = field(default_factory=list)
    follows: str | None = None
    then: list[int] = field(default_factory=list)  # behind each followed text
    max_tokens: int | list[int] | None = 32  # None: to the end of max_model_len
    concurrency: int | None = None  # requests at a time
    joins: list[int] = field(default_factory=list)  # per prompt: the step before which it is added
    cold: bool = False  # the prefix cache is emptied first
    logprobs: int | None = None
    lora: list[Path | None] = field(default_factory=list)  # per prompt: the folder of an adapter
    asked: list[dict[str, Any]] = field(default_factory=list)  # per prompt: as in `kinds`, over greedy


@dataclass(frozen=True)
class Engine:
    name: str
    batches: list[Batch]
    speculative: dict[str, Any] | None = None
    engine_args: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # additional_config.eagle_ext
    target: Path = TINY / "target"


def eagle3(name: str, k: int) -> dict[str, Any]:
    return {"method": "eagle3", "model": str(TINY / name), "num_speculative_tokens": k}


def run_engines(engines: Sequence[Engine], runner: str = "v1", **environment: str) -> dict[str, Any]:
    """Engine -> batch -> result.

    Raises:
        EngineFailedError: the process ended without results, or an engine failed.
    """
    results, log = run_child(
        "batches_process",
        [asdict(engine) for engine in engines],
        environment=engine_environment(runner) | IN_PROCESS | environment,
        timeout_s=TIMEOUT_S,
    )
    for name, found in results.items():
        if "error" in found:
            raise EngineFailedError(f"{log[-3000:]}\n{name}: {found['trace']}")
    return results


def drafts_of(result: dict[str, Any]) -> list[dict[int, list[int]]]:
    """Per prompt: length of the text -> drafted ids."""
    return [{int(length): row for length, row in one.items()} for one in result["placed"]]


def compare_drafts(left: dict[str, Any], right: dict[str, Any]) -> tuple[int, int]:
    """Drafts of the same texts at the same lengths: how many there are, and how many differ."""
    both = different = 0
    for one, other in zip(drafts_of(left), drafts_of(right), strict=True):
        lengths = one.keys() & other.keys()
        both += len(lengths)
        different += sum(one[length] != other[length] for length in lengths)
    return both, different
