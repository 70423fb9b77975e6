# SPDX-License-Identifier: Apache-2.0
"""Copies of both tiny pairs with positions for long contexts and weights as committed.

    python -m benchmarks.long_shapes [--out build/long_shapes]

Nothing is trained, and what they draft says nothing: shapes alone decide how long a step takes, which
benchmarks/draft_window.py measures.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from benchmarks.long_pair import COMMITTED, POSITIONS

NAMES = ("target", "postnorm", "hybrid_target", "dflash")


def stretch(name: str, out: Path) -> None:
    shutil.copytree(COMMITTED / name, out / name, dirs_exist_ok=True)
    path = out / name / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/long_shapes"))
    out = parser.parse_args().out
    for name in NAMES:
        stretch(name, out)
    print(*(out / name for name in NAMES), sep="\n")


if __name__ == "__main__":
    main()
