"""The layers of the package, and the parts of docs/architecture.md that are made from them.

    python -m tools.architecture           prints the diagram and the tables
    python -m tools.architecture --write   writes them into docs/architecture.md

tests/unit/test_architecture.py holds the package to this table and the page to this script.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"


@dataclass(frozen=True)
class Layer:
    """A folder or a group of modules of the package.

    modules: top-level names below `vllm_eagle_ext`.
    may_import: other layers that its modules may import, anywhere in a file; their own they always may.
    without: libraries that none of its modules imports, deferred imports included.
    """

    name: str
    modules: tuple[str, ...]
    holds: str
    may_import: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


LAYERS = (
    Layer(
        "base",
        ("version", "errors", "log", "failure_causes", "after_import", "drafter_classes", "touched"),
        "version, error types, logger, import hooks, drafter classes, what is touched of vLLM",
        without=("vllm", "torch"),
    ),
    Layer(
        "checkpoint",
        ("checkpoint",),
        "what a draft's files say, and the rules that they must keep",
        ("base",),
        without=("vllm", "torch"),
    ),
    Layer(
        "options",
        ("options",),
        "the options of `additional_config`",
        ("base",),
        without=("vllm", "torch"),
    ),
    Layer(
        "memory",
        ("memory",),
        "geometry of the caches, requests that fit, which scheme keeps the recurrent states",
        ("base", "checkpoint"),
        without=("vllm",),  # `plan` asks torch for the GPU's memory
    ),
    Layer(
        "compat",
        ("compat", "architectures"),
        "vLLM's versions, and every name of vLLM's that is replaced",
        ("base",),
    ),
    Layer(
        "start",
        ("failed_start", "resolved_marker", "metrics"),
        "what a start leaves behind: its last line, the resolved-config marker, gauges",
        ("base", "checkpoint", "memory"),
    ),
    Layer(
        "drafters",
        ("drafters",),
        "model classes of the drafter families",
        ("base", "checkpoint", "compat", "start"),
    ),
    Layer(
        "replay",
        ("replay",),
        "the gated delta net layer that replays, its operations and their commit",
        ("base", "memory", "compat", "start"),
    ),
    Layer(
        "preflight",
        ("preflight",),
        "what happens between the command line and vLLM's SpeculativeConfig",
        ("base", "checkpoint", "options", "memory", "compat", "start", "drafters"),
    ),
    Layer(
        "plugin",
        ("plugin",),
        "the entry point: registers drafters and targets, installs what compat has",
        ("base", "checkpoint", "memory", "compat", "start", "preflight"),
    ),
    Layer(
        "measure",
        ("measure",),
        "bench, tune, verify, selftest and their references; no engine that serves a user imports it",
        ("base", "checkpoint", "options", "memory", "replay", "preflight"),
    ),
    Layer(
        "cli",
        ("cli",),
        "the commands of `vllm-eagle`: arguments in, tables and JSON out",
        ("base", "checkpoint", "memory", "compat", "preflight", "plugin", "measure"),
    ),
)  # fmt: skip

BY_NAME = {layer.name: layer for layer in LAYERS}
LAYER_OF = {module: layer for layer in LAYERS for module in layer.modules}


def drawn_edges() -> list[tuple[str, str]]:
    """The arrows of the diagram: an import that follows from two others is left out."""
    return [
        (layer.name, other)
        for layer in LAYERS
        for other in layer.may_import
        if not any(other in BY_NAME[between].may_import for between in layer.may_import)
    ]


def diagram() -> str:
    lines = ["```mermaid", "flowchart TD"]
    for layer in reversed(LAYERS):
        modules = "" if layer.modules == (layer.name,) else f": {', '.join(layer.modules)}"
        holds = layer.holds.replace("`", "")
        lines.append(f'  {layer.name}["<b>{layer.name}</b>{modules}<br/>{holds}"]')
    lines += [f"  {above} --> {below}" for above, below in drawn_edges()]
    return "\n".join([*lines, "```"])


def table() -> str:
    lines = ["| layer | holds | may import | never imports |", "|---|---|---|---|"]
    for layer in LAYERS:
        others = ", ".join(layer.may_import) or "nothing"
        lines.append(
            f"| {_title(layer)} | {layer.holds} | {others} | {', '.join(layer.without) or '-'} |"
        )
    return "\n".join(lines)


def _title(layer: Layer) -> str:
    names = [f"`{m}/`" if (ROOT / "vllm_eagle_ext" / m).is_dir() else f"`{m}.py`" for m in layer.modules]
    return names[0] if len(names) == 1 else f"{layer.name}: {', '.join(names)}"


def parts() -> Iterator[tuple[str, str]]:
    """Name of the markers in the page, and what stands between them."""
    from vllm_eagle_ext.touched import markdown_table

    yield "layers", f"{diagram()}\n\n{table()}"
    yield "touched", markdown_table()


def written(name: str) -> str:
    """What the page has between the markers of this name."""
    found = _between(name).search(PAGE.read_text(encoding="utf-8"))
    return found[0].strip("\n") if found else ""


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)


def main() -> None:
    for name, text in parts():
        print(text)
        if "--write" in sys.argv[1:]:
            old = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(_between(name).sub(lambda _, new=text: f"{new}\n", old), encoding="utf-8")


if __name__ == "__main__":
    main()
