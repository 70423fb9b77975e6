"""The table of target families in docs/targets.md: what the tests' runs said, and nothing else.

python -m tests.families --run     serves every family, and writes docs/families.json
python -m tests.families --write   writes the table of that file into docs/targets.md
"""

from __future__ import annotations

import json
import re
import sys

from tests.support.engine import ROOT
from tests.support.targets.families import FAMILIES
from tests.support.targets.rows import Row, rows_of, table
from tests.support.targets.run import serve_families

PAGE = ROOT / "docs/targets.md"
ROWS = ROOT / "docs/families.json"
_BLOCK = re.compile(r"(?<=<!-- families:begin -->\n).*?(?=<!-- families:end -->)", re.DOTALL)


def run() -> list[Row]:
    parallel = [name for name, family in FAMILIES.items() if family.parallel]
    v2 = [name for name, family in FAMILIES.items() if family.v2]
    return rows_of(
        serve_families(list(FAMILIES)),
        serve_families(parallel, ranks=2),
        serve_families(v2, runner="v2"),
    )


def written_rows() -> list[Row]:
    return json.loads(ROWS.read_text(encoding="utf-8"))


def main() -> None:
    if "--run" in sys.argv[1:]:
        ROWS.write_text(json.dumps(run(), indent=1) + "\n", encoding="utf-8")
    shown = table(written_rows())
    print(shown)
    if "--write" in sys.argv[1:]:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_BLOCK.sub(lambda _: shown + "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main()
