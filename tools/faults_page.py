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
# What a docstring says behind its title; in brackets what some leave out.
FIELDS = (
    "Kind", "Met by", "Symptom", "Cause", "Releases", "[No script]", "[Also shown by]", "Workaround",
    "[Remedy]", "Can go when",
)  # fmt: skip
KINDS = {
    "worked around": "The package serves rightly what vLLM alone would not.",
    "refused beforehand": "Refused before weights are loaded; vLLM alone fails later, or goes on.",
    "explains an observation": "The package does nothing about these.",
}
INTRODUCTION = """\
# Faults of vLLM that were found

Written by `python -m tools.faults_page --write` from the docstrings of the scripts in
[vllm_faults](vllm_faults), which also say who meets the fault, the function that is its cause, what
was run and what was read, where this package works around it, and when that can go. Not listed:
limits that vLLM states.

Whose fault is it? A script imports vLLM alone, starts no engine and takes seconds:
`python docs/dev/vllm_faults/NAME.py`. `fault present: ..` and status 0 say that your vLLM has the fault,
`fault gone: ..` and status 1 that it does not. For what is not listed, start the same engine with
`VLLM_PLUGINS=""`: what happens there as well is vLLM's. What happens only with this package is ours: see
*Not loading?* in the [README](../../README.md), and `vllm-eagle verify` for drafts.

In 0.32 and 0.33, unless said otherwise. Of 0.33 the Python files were run, over 0.32's compiled
CPU kernels.
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
        link = f"[{self.path.stem}]({self.path.relative_to(PAGE.parent)})"
        where = link if releases == "0.32 and 0.33" else f"{releases}; {link}"
        return f"- **{self.title}** ({where}). {symptom}{remedy}"


def read(path: Path) -> Fault:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    title, _, body = said.partition("\n")
    names = "|".join(name.strip("[]") for name in FIELDS)
    found = re.findall(rf"^({names}): (.+(?:\n  .+)*)", body, re.MULTILINE)
    return Fault(path, title.rstrip("."), {name: re.sub(r"\s+", " ", text) for name, text in found})


def faults() -> list[Fault]:
    return [read(path) for path in sorted(FOLDER.rglob("*.py"), key=lambda path: path.stem)]


def page() -> str:
    found = faults()
    text = INTRODUCTION
    for kind, meaning in KINDS.items():
        lines = [fault.line() for fault in found if fault.parts["Kind"] == f"{kind}."]
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
