"""A broken draft, or its surroundings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.drafts import TARGET, VLLMS, Draft, valid_draft

Change = tuple[str, "Mutant"]
ZLAB = ("dflash", "dflash2", "dspark")
DFLASH = (*ZLAB, "dflash-speculators", "dspark-speculators")
SPECULATORS = ("speculators", "p-eagle", "dflash-speculators", "dspark-speculators")


@dataclass
class Mutant:
    """`draft` with one thing changed, or its surroundings."""

    family: str
    draft: Draft
    operator: str = ""
    label: str = ""
    target: dict[str, Any] = field(default_factory=lambda: dict(TARGET))
    max_model_len: int = 512
    runner: str | None = "v1"
    files: dict[str, str] = field(default_factory=dict)  # beside the draft's
    target_files: dict[str, str] = field(default_factory=dict)
    as_bin: bool = False
    parallel_drafting: bool = True

    @property
    def differs_in_a_name_only(self) -> bool:
        return self.operator in ("rename tensor", "alias tensor")


def fresh(family: str) -> Mutant:
    return Mutant(family, valid_draft(family), runner="v2" if family in VLLMS else "v1")
