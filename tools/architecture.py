"""The layers of the package, and their table in docs/dev/architecture.md.

    python -m tools.architecture           prints the table
    python -m tools.architecture --write   writes it into docs/dev/architecture.md

tests/unit/test_architecture.py holds the package to this table and the page to this script.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/dev/architecture.md"
_BLOCK = re.compile(r"(?<=<!-- layers:begin -->\n).*?(?=<!-- layers:end -->)", re.DOTALL)


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
        (
            "version", "errors", "printable", "log", "failure_causes", "after_import",
            "drafter_classes", "touched",
        ),  # fmt: skip
        "version, error types, texts to be shown, logger, import hooks, drafter classes, what is "
        "touched of vLLM",
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
        "what a start leaves: its last line, the resolved-config marker, gauges",
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

LAYER_OF = {module: layer for layer in LAYERS for module in layer.modules}


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


def written() -> str:
    """What the page has between the markers."""
    found = _BLOCK.search(PAGE.read_text(encoding="utf-8"))
    return found[0].strip("\n") if found else ""


def main() -> None:
    print(table())
    if "--write" in sys.argv[1:]:
        old = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_BLOCK.sub(lambda _: f"{table()}\n", old), encoding="utf-8")


if __name__ == "__main__":
    main()
