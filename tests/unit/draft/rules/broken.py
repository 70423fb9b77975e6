"""A broken draft: the rule that it breaks, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.drafts import inspect, valid_draft
from tests.unit.draft.rules.changes import Change
from vllm_eagle_ext.draft import Inspection


@dataclass(frozen=True)
class Broken:
    rule: str
    family: str
    changes: tuple[Change, ...]
    words: tuple[str, ...]  # of the finding
    others: frozenset[str] = frozenset()  # errors that cannot be avoided
    engine: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def case(
    rule: str,
    what: str,
    family: str,
    *changes: Change,
    words: tuple[str, ...],
    others: tuple[str, ...] = (),
    **rest: Any,
) -> Any:
    broken = Broken(rule, family, changes, words, frozenset(others), **rest)
    return pytest.param(broken, id=f"{rule}-{what}")


def inspect_broken(broken: Broken, folder, **options) -> Inspection:
    draft = valid_draft(broken.family)
    for change in broken.changes:
        change(draft)
    given = {"target": broken.target, "engine": broken.engine}
    if broken.rule == "tokenizers_agree":
        given["target_folder"] = write_tokenizers(folder, {"a": 0, "b": 1}, {"a": 0, "b": 2})
    return inspect(draft, folder, **given, **broken.options, **options)


def write_tokenizers(folder, draft: dict[str, int], target: dict[str, int]) -> Path:
    """One beside the draft, one in the target's folder, which is returned."""
    for place, tokens in ((folder, draft), (folder / "target", target)):
        place.mkdir(exist_ok=True)
        (place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}}))
    return folder / "target"


def names(findings) -> set[str]:
    return {finding.rule for finding in findings}
