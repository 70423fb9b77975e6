"""JSON schemas of what `bench --json` and `verify --json` print, from the records themselves.

python -m tools.schemas      writes docs/schemas/*.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from vllm_eagle_ext.cli.terminal import SCHEMA
from vllm_eagle_ext.measure.bench.results import Report
from vllm_eagle_ext.measure.verify.request import VerifyReport

FOLDER = Path(__file__).parents[1] / "docs/schemas"
RECORDS: dict[str, Any] = {"bench": Report, "verify": VerifyReport}
COMMON = {"schema_version": {"const": SCHEMA}, "exit_code": {"enum": [0, 1, 2]}}


def schema(name: str) -> dict[str, Any]:
    """What a command's --json is, unless it failed and has `error`."""
    made = TypeAdapter(RECORDS[name]).json_schema(mode="serialization")
    made["properties"] = {**COMMON, **made["properties"]}
    made["required"] = [*COMMON, *made["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in RECORDS:
        text = json.dumps(schema(name), indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
