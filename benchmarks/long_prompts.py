# SPDX-License-Identifier: Apache-2.0
"""Prompts of a given length from the library files that the tiny pairs were not trained on."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

TINY = Path("examples/tiny")


def write_prompts(path: Path, tokens: int, count: int) -> Path:
    """`count` beginnings of held-out files, of `tokens` to a tenth less, as JSON lines."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    library = Path(sysconfig.get_paths()["stdlib"])
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    texts = []
    for name in sorted({json.loads(line)["file"] for line in lines}):
        ids = tokenizer((library / name).read_text())["input_ids"] if (library / name).exists() else []
        if len(ids) >= tokens:
            text = tokenizer.decode(ids[: int(0.97 * tokens)])
            texts.append(json.dumps({"file": name, "text": text}))
    if len(texts) < count:
        raise SystemExit(f"only {len(texts)} held-out files have {tokens} tokens")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(texts[:count]) + "\n")
    return path
