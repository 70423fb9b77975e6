"""What is changed: a tiny draft of every family and every published one, each with its target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import checkpoints
from tests.support.drafts import FAMILIES, VLLMS, valid_draft, write
from tests.support.published import materialise, published, write_target

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Subject:
    name: str
    family: str
    folder: Path  # with draft/ and target/
    options: dict[str, str]  # of `check`
    is_tiny: bool  # its file of weights is small enough to be written anew

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name / "config.json").read_text())

    def weights(self) -> tuple[dict[str, Any], bytes]:
        """Header and data."""
        raw = (self.folder / "draft" / WEIGHTS).read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        return json.loads(raw[8:end]), raw[end:]


def subjects(root: Path) -> list[Subject]:
    pool = []
    for family in FAMILIES:
        draft, folder = valid_draft(family), root / f"tiny-{family}"
        write(draft, folder / "draft")
        checkpoints.write_target(folder / "target")
        options = {"-k": str(draft.k)} | ({"--platform": "cuda"} if family in VLLMS else {})
        pool.append(Subject(folder.name, family, folder, options, is_tiny=True))
    for checkpoint in published():
        folder = root / checkpoint.slug
        materialise(checkpoint, folder / "draft")
        write_target(checkpoint, folder / "target")
        family = checkpoint.expect.get("family", checkpoint.expect["verdict"])
        options = {"-k": str(checkpoint.k), "--max-model-len": "4096", "--platform": "cuda"}
        pool.append(Subject(folder.name, family, folder, options, is_tiny=False))
    return pool
