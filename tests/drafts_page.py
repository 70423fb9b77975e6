"""The table of docs/drafts.md that says which drafter class serves which published architecture.

python -m tests.drafts_page           prints it
python -m tests.drafts_page --write   writes it into the page
"""

from __future__ import annotations

import re
import sys

from tests.support.engine import ROOT
from vllm_eagle_ext.draft import registry
from vllm_eagle_ext.families.drafter_classes import Drafter, drafters

PAGE = ROOT / "docs/drafts.md"
_BLOCK = re.compile(r"(?<=<!-- architectures:begin -->\n).*?(?=<!-- architectures:end -->)", re.DOTALL)


def architectures() -> list[str]:
    """The rows, one per drafter class, with a head."""
    head = ["|served as|families|`method`|architecture in `config.json`|speculators type|"]
    return [*head, "|---|---|---|---|---|", *(_row(drafter) for drafter in drafters())]


def _row(drafter: Drafter) -> str:
    families = [one.title for one in registry.families().values() if drafter in one.drafters]
    published = ", ".join(f"`{name}`" for name in sorted(drafter.published))
    layers = dict.fromkeys(layer for _, layer in drafter.speculators)
    kinds = dict.fromkeys(f"`{type_}`" for type_, _ in drafter.speculators)
    types = kinds and f"{', '.join(kinds)} on {', '.join(layers)}"
    cells = (
        f"`{drafter.architecture}`", ", ".join(sorted(families)), f"`{drafter.method}`", published,
        types or "-",
    )  # fmt: skip
    return f"|{'|'.join(cells)}|"


def main() -> None:
    text = "\n".join(architectures()) + "\n"
    print(text, end="")
    if "--write" in sys.argv[1:]:
        old = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_BLOCK.sub(lambda _: text, old), encoding="utf-8")


if __name__ == "__main__":
    main()
