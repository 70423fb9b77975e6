"""The tables of docs/drafts.md: the rules, and which drafter class serves which published architecture.

python -m tests.drafts_page           prints them
python -m tests.drafts_page --write   writes them into the page
"""

from __future__ import annotations

import re
import sys
from inspect import getdoc

from tests.support.engine import ROOT
from vllm_eagle_ext.draft import registry
from vllm_eagle_ext.draft.findings import Rule
from vllm_eagle_ext.draft.rules import every_rule
from vllm_eagle_ext.families.drafter_classes import Drafter, drafters
from vllm_eagle_ext.start.rules import start_rules

PAGE = ROOT / "docs/drafts.md"


def tables() -> dict[str, list[str]]:
    """The lines of each table, by the name in its marks."""
    head = ["|rule|what must hold|", "|---|---|"]
    lines = {kind: list(head) for kind in ("error", "error that can run", "warning", "note")}
    for rule in every_rule():
        lines[kind_of(rule)].append(f"|`{rule.name}`|{what_must_hold(rule)}|")
    head = ["|rule|severity|what must hold|", "|---|---|---|"]
    rows = (f"|`{rule.name}`|{kind_of(rule)}|{what_must_hold(rule)}|" for rule in start_rules())
    return lines | {"start": [*head, *rows], "architectures": architectures()}


def kind_of(rule: Rule) -> str:
    relaxes = rule.severity == "error" and rule.can_run
    return "error that can run" if relaxes else rule.severity.value


def what_must_hold(rule: Rule) -> str:
    """The first sentence of the docstring."""
    (first,) = re.findall(r"\A.+?\.(?=\s|$)", getdoc(rule.check) or "")
    return first


def architectures() -> list[str]:
    """The rows, one per drafter class, with a head."""
    head = ["|served as|families|`method`|architecture in `config.json`|speculators type|"]
    return [*head, "|---|---|---|---|---|", *(_row(drafter) for drafter in drafters())]


def _row(drafter: Drafter) -> str:
    families = [f.title for f in registry.families().values() if drafter in f.drafters]
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
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in tables().items():
        begin, end = (f"<!-- {name}:{side} -->\n" for side in ("begin", "end"))
        text = "\n".join([*lines, ""])
        print(text)
        before, rest = page.split(begin)
        page = before + begin + text + end + rest.split(end)[1]
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
