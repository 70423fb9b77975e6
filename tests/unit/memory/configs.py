"""Published targets' config.json."""

from __future__ import annotations

import json
from pathlib import Path

GIB_27B = 50.096435546875  # weights of qwen3_6_27b in bfloat16, without images and norms
FIXTURES = Path(__file__).parents[2] / "fixtures" / "hybrid"


def config(name, **changes):
    """config.json of a published target; `changes` go to its language model, None drops a key."""
    raw = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))["config"]
    text = raw.get("text_config", raw)
    for key, value in changes.items():
        text.pop(key, None)
        if value is not None:
            text[key] = value
    return raw


TARGETS = {
    "4B": config("qwen3_5_4b"),
    "27B": config("qwen3_6_27b"),
    "35B-A3B": config("qwen3_6_35b_a3b"),
    "Next-80B": config("qwen3_next_80b_a3b"),
}
