"""python -m tools.faults_page [--write]: docs/dev/vllm_faults.md, from the docstrings of its scripts."""

from __future__ import annotations

import argparse
import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/dev/vllm_faults.md"
FOLDER = PAGE.with_suffix("")
# What a docstring says after its title; in brackets what some leave out.
FIELDS = (
    "Kind", "Met by", "Symptom", "Cause", "Releases", "[No script]", "[Also shown by]", "Workaround",
    "[Remedy]", "Can go when",
)  # fmt: skip
KINDS = {
    "worked around": "The package serves these correctly.",
    "refused beforehand": "Refused before weights are loaded; stock vLLM fails later, or goes on.",
    "explains an observation": "The package does nothing about these.",
}
INTRODUCTION = """\
# Faults of vLLM that were found

Drafts meet these faults of vLLM 0.32 and, unless marked, 0.33. Causes and workarounds are in the
linked files. `python docs/dev/vllm_faults/NAME.py` takes seconds and starts no engine. It prints
`fault present: ..` (status 0) or `fault gone: ..` (status 1).

To judge another fault, start the same engine with `VLLM_PLUGINS=""`: what still happens is vLLM's. For
the rest see [no start?](../../README.md#few-tokens-accepted-or-no-start) and `vllm-eagle verify`.
"""


@dataclass(frozen=True)
class Fault:
    """What a docstring tells of a fault."""

    path: Path
    title: str
    parts: dict[str, str]

    @property
    def has_script(self) -> bool:
        return self.path.parent == FOLDER

    def line(self) -> str:
        releases = re.sub(r" \([^)]*\)", "", self.parts["Releases"]).rstrip(".")
        symptom = re.split(r"(?<=\.) (?=[A-Z])", self.parts["Symptom"])[0]
        remedy = f" *Remedy:* {self.parts['Remedy']}" if "Remedy" in self.parts else ""
        link = f"[{self.title}]({self.path.relative_to(PAGE.parent)})"
        in_both = re.fullmatch(r"0\.32(,|;| and) 0\.33", releases)
        where = "" if in_both else f" ({releases.removeprefix('0.32; ')})"
        return f"- **{link}**{where}. {symptom}{remedy}"


def read(path: Path) -> Fault:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    title, _, body = said.partition("\n")
    names = "|".join(name.strip("[]") for name in FIELDS)
    parts = re.findall(rf"^({names}): (.+(?:\n  .+)*)", body, re.MULTILINE)
    return Fault(path, title.rstrip("."), {name: re.sub(r"\s+", " ", text) for name, text in parts})


def faults() -> list[Fault]:
    return [read(path) for path in sorted(FOLDER.rglob("*.py"), key=lambda path: path.stem)]


def page() -> str:
    known = faults()
    text = INTRODUCTION
    for kind, meaning in KINDS.items():
        lines = [fault.line() for fault in known if fault.parts["Kind"] == f"{kind}."]
        text += "\n".join([f"\n## {kind.capitalize()}", "", meaning, "", *lines, ""])
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page; else print it")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
