"""The layers of the package, and their table in docs/dev/architecture.md.

    python -m tools.architecture           prints the table
    python -m tools.architecture --write   writes it into docs/dev/architecture.md

tests/unit/test_architecture.py holds the package to this table and the page to this script.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/dev/architecture.md"
_BLOCK = re.compile(r"(?<=<!-- layers:begin -->\n).*?(?=<!-- layers:end -->)", re.DOTALL)


@dataclass(frozen=True)
class Layer:
    """A folder or a group of modules of the package.

    modules: top-level names below `vllm_eagle_ext`; dotted patterns go before the rest of their folder.
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
            "version", "errors", "printable", "log", "start.failed_start",
            "families.drafter_classes", "families.*.names",
        ),  # fmt: skip
        "small modules that import no other layer",
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
        "device",
        ("memory.device",),
        "a device, and a CPU's kernels",
        ("base",),
    ),
    Layer(
        "draft",
        ("draft",),
        "what a draft's files say, and the rules that they must keep",
        ("base", "options"),
        without=("vllm", "torch"),
    ),
    Layer(
        "memory",
        ("memory",),
        "geometry of caches, requests that fit, scheme of the recurrent states",
        ("base", "device", "draft"),
        without=("vllm", "torch"),
    ),
    Layer(
        "compat",
        ("compat", "start.schedulers"),
        "vLLM's versions, schedulers, and replaced names",
        ("base",),
    ),
    Layer(
        "start rules",
        ("start.rules",),
        "rules about the engine around a draft, over vLLM's VllmConfig",
        ("base", "options", "device", "draft", "memory", "compat"),
    ),
    Layer(
        "marks",
        ("families.resolved_marker", "start.metrics"),
        "the resolved-config marker, gauges",
        ("base", "device", "draft", "memory"),
    ),
    Layer(
        "parts",
        ("families.parts",),
        "shared parts of model classes",
        ("base", "draft", "compat", "marks"),
    ),
    Layer(
        "records",
        ("families.*.family",),
        "records of the families",
        ("base", "draft"),
        without=("vllm", "torch"),
    ),
    Layer(
        "families",
        ("families",),
        "their config writers and model classes",
        ("base", "draft", "parts"),
    ),
    Layer(
        "replay",
        ("replay",),
        "the gated delta net layer that replays, its operations and their commit",
        ("base", "memory", "compat", "marks"),
    ),
    Layer(
        "start",
        ("start",),
        "a start, `check`, and the dry start that ends it",
        (
            "base", "options", "device", "draft", "memory", "compat", "start rules", "marks",
            "parts",
        ),  # fmt: skip
    ),
    Layer(
        "plan",
        ("plan",),
        "what a target and K need of memory, and how many requests fit",
        ("base", "options", "device", "draft", "memory", "start"),
        without=("vllm",),  # it asks torch for the GPU's memory
    ),
    Layer(
        "plugin",
        ("plugin",),
        "registers drafters and targets, installs compat",
        ("base", "draft", "memory", "compat", "marks", "start"),
    ),
    Layer(
        "measure",
        ("measure",),
        "bench, verify, selftest and their references",
        (
            "base", "draft", "options", "device", "memory", "compat", "start rules", "replay",
            "start", "plan",
        ),  # fmt: skip
    ),
    Layer(
        "cli",
        ("cli",),
        "commands: arguments in, tables and JSON out",
        (
            "base", "device", "draft", "memory", "compat", "start rules", "start", "plan",
            "plugin", "measure",
        ),  # fmt: skip
    ),
)  # fmt: skip


def layer_of(module: str) -> Layer | None:
    """The layer of a module, by its dotted name below the package: a pattern goes before its folder."""
    by_name = {name: layer for layer in LAYERS for name in layer.modules}
    for name, layer in by_name.items():
        if "." in name and any(fnmatchcase(module, part) for part in (name, f"{name}.*")):
            return layer
    return by_name.get(module.split(".")[0])


def table() -> str:
    """Compose the page's table; what a layer may import stands only here."""
    lines = ["|layer|holds|never imports|", "|---|---|---|"]
    for layer in LAYERS:
        lines.append(f"|{_title(layer)}|{layer.holds}|{', '.join(layer.without) or '-'}|")
    return "\n".join(lines)


def _title(layer: Layer) -> str:
    paths = [module.replace(".", "/") for module in layer.modules]
    names = [f"`{p}/`" if (ROOT / "vllm_eagle_ext" / p).is_dir() else f"`{p}.py`" for p in paths]
    return names[0] if len(names) == 1 else f"{layer.name}: {', '.join(names)}"


def main() -> None:
    print(table())
    if "--write" in sys.argv[1:]:
        old = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_BLOCK.sub(lambda _: f"{table()}\n", old), encoding="utf-8")


if __name__ == "__main__":
    main()
