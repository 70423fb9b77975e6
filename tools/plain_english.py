"""Holds pages, help, messages and comments to plain English."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
MOST_WORDS = 30
INSTEAD = {
    "alone": "only", "beside": "next to, with", "behind": "after", "such of": "those of",
    "is told": "is reported", "are told": "are reported", "is said": "is reported",
    "are said": "are reported", "it is to be": "must", "by which rule": "why",
}  # fmt: skip
_LISTED = re.compile(rf"\b({'|'.join(INSTEAD)})\b(?! apart\b)", re.IGNORECASE)
# Cells of tables, items of lists and what a colon introduces count for themselves.
_END = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)|\|")
_FENCED = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_LINK, _CODE = re.compile(r"\[([^\]]*)\]\([^)]*\)"), re.compile(r"`[^`]*`")
# Files in which every line is searched for listed words; this one lists them.
_FOLDERS = r"(vllm_eagle_ext|docs/dev/vllm_faults|examples|tools|benchmarks)"
_SEARCHED = re.compile(rf"(?!tools/plain_english\.py){_FOLDERS}/.*\.py|Makefile|pyproject\.toml")


def long_sentences(text: str) -> Iterator[str]:
    for sentence in _END.split(text):
        if len(re.findall(r"[A-Za-z0-9][\w'’/.-]*", sentence)) > MOST_WORDS:
            yield f"over {MOST_WORDS} words: {' '.join(sentence.split())}"


def listed_words(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for match in _LISTED.finditer(line):
            yield f"{match[0]!r}, say {INSTEAD[match[0].lower()]!r}: {line.strip()}"


def prose(page: str) -> str:
    """Leave out blocks of code and addresses of links; a code span counts as one word."""
    text = _LINK.sub(r"\1", _FENCED.sub("\n\n", page))
    return _CODE.sub("`x`", text)


def is_searched(name: str) -> bool:
    """Tell whether every line of a file is searched for listed words, code included."""
    return _SEARCHED.fullmatch(name) is not None


def help_texts() -> Iterator[tuple[str, str]]:
    """Give the help of every command and option, by its name."""
    from vllm_eagle_ext.cli import app

    group: Any = typer.main.get_command(app)
    yield "vllm-eagle --help", group.help or ""
    for name, command in group.commands.items():
        yield f"vllm-eagle {name} --help", command.help or ""
        for option in command.params:
            yield f"vllm-eagle {name} {option.opts[0]}", getattr(option, "help", None) or ""


def problems() -> Iterator[str]:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n")
    for name in listed:
        path = ROOT / name
        if name.endswith(".md"):
            text = prose(path.read_text(encoding="utf-8"))
            yield from (f"{name}: {what}" for what in (*long_sentences(text), *listed_words(text)))
        elif is_searched(name):
            yield from (f"{name}: {what}" for what in listed_words(path.read_text(encoding="utf-8")))
    for name, text in help_texts():
        yield from (f"{name}: {what}" for what in (*long_sentences(text), *listed_words(text)))


if __name__ == "__main__":
    lines = list(problems())
    print("\n".join(lines), file=sys.stderr)
    sys.exit(bool(lines))
