"""The committed files: a few rows at the smallest sizes, and what their writers' forwards draft.

    python tools/setup_peers.py
    .venv-peers/bin/python -m tests.peers.fixtures

writes tests/fixtures/peers anew. They are read without any peer by tests/unit/peers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.peers import of_angelslim, of_specforge, of_speculators
from tests.peers.texts import TARGET, texts
from tests.support.engine import ROOT

FOLDER = ROOT / "tests/fixtures/peers"
COMMAND = ".venv-peers/bin/python -m tests.peers.fixtures"
_SMALL = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
_REDUCED = {"draft_vocab_size": 128}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0} | {
    "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Fixture:
    name: str
    peer: str
    write: Callable[..., Path]
    draft: Callable[..., Any]
    flags: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)  # with which our side reads it


def _speculators(name: str, algorithm: str, **flags: Any) -> Fixture:
    write = partial(of_speculators.write, algorithm=algorithm)
    return Fixture(f"speculators_{name}", "speculators", write, of_speculators.draft, flags)


def _specforge(name: str, kind: str, options: dict[str, Any] | None = None, **flags: Any) -> Fixture:
    write = partial(of_specforge.write, kind=kind)
    return Fixture(f"specforge_{name}", "specforge", write, of_specforge.draft, flags, options or {})


def _angelslim(name: str, **flags: Any) -> Fixture:
    return Fixture(f"angelslim_{name}", "angelslim", of_angelslim.write, of_angelslim.draft, flags)


FIXTURES = [
    _speculators("eagle3", "eagle3", **_REDUCED),
    _speculators("peagle", "peagle", **_REDUCED),
    _speculators("dflash_yarn", "dflash", rope_parameters=_YARN),
    _speculators("dflash2", "dflash2", conv_group_size=32, selector_rank=8, selector_top_k=4),
    _speculators("dspark", "dspark", markov_rank=8, **_REDUCED),
    _specforge("eagle31", "eagle3", {"norm_output": False}, fc_norm=True, norm_output=True, **_REDUCED),
    _specforge("peagle", "peagle", num_hidden_layers=1, mask_token_id=of_specforge.MASK, **_REDUCED),
    _specforge("full_vocabulary", "eagle3", draft_vocab_size=1536),
    _angelslim("eagle3", aux_hidden_states_layer_ids=[7, 0, 3], **_REDUCED),
]


def write(fixture: Fixture) -> None:
    folder = FOLDER / fixture.name
    shutil.rmtree(folder, ignore_errors=True)
    fixture.write(folder, **_SMALL, **fixture.flags)
    # Savers of transformers put the library's own configuration code beside the file.
    left_out = [path.name for path in folder.iterdir() if path.suffix == ".py"]
    for name in left_out:
        (folder / name).unlink()
    text = texts(TARGET)[0]
    fixture.draft(folder, text, TARGET).save(folder / "expected.json")
    said = {
        "written_by": f"{fixture.peer} {version(fixture.peer)}",
        "with": {name: version(name) for name in ("torch", "transformers")},
        "command": COMMAND,
        "flags": _SMALL | fixture.flags,
        "target": TARGET,
        "options": fixture.options,
        "text": list(text),
        "left_out": left_out,
        "sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "expected": f"chains of {fixture.peer}'s own forward behind every row of the text, float32",
    }
    (folder / "provenance.json").write_text(json.dumps(said, indent=1) + "\n")


def main() -> None:
    os.chdir(ROOT)
    torch.manual_seed(0)
    for fixture in FIXTURES:
        write(fixture)
        size = sum(path.stat().st_size for path in (FOLDER / fixture.name).iterdir())
        print(f"{fixture.name}: {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
