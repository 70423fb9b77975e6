"""Counts the functions of the package that a start, or `vllm-eagle check`, calls.

python -m tools.start_calls postnorm         builds an engine's config with the draft of examples/tiny
python -m tools.start_calls dflash --check   runs `vllm-eagle check` instead

Functions are told apart by name and module; generator expressions and lambdas are left out. A call
across modules comes from another module of the package.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import vllm_eagle_ext

TINY = Path(__file__).parents[1] / "examples/tiny"
PACKAGE = str(Path(vllm_eagle_ext.__file__).parent)
TARGETS = {"dflash": "hybrid_target"}  # of the other drafts: "target"
LEFT_OUT = ("<genexpr>", "<lambda>", "<module>")


def count(run: Callable[[], object]) -> Counter[tuple[str, str, str]]:
    """Count calls by the caller's file, the file and the function's name."""
    calls: Counter[tuple[str, str, str]] = Counter()

    def see(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in LEFT_OUT:
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            calls[caller, code.co_filename, code.co_qualname] += 1

    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def _import() -> None:
    """Import what a start or a check imports late, so that only its own calls are counted."""
    for name in ("start.build", "start.check", "cli.check"):
        importlib.import_module(f"vllm_eagle_ext.{name}")


def start(draft: str) -> Callable[[], object]:
    from vllm.engine.arg_utils import EngineArgs

    from vllm_eagle_ext import plugin

    plugin.register()
    _import()
    asked = {
        "method": "dflash" if draft == "dflash" else "eagle3",
        "model": str(TINY / draft),
        "num_speculative_tokens": 3,
    }
    target = str(TINY / TARGETS.get(draft, "target"))
    # vLLM cannot cache prefixes of a hybrid target on a CPU.
    args = EngineArgs(target, speculative_config=asked, enable_prefix_caching=False)
    return args.create_engine_config


def check(draft: str) -> Callable[[], object]:
    from typer.testing import CliRunner

    from vllm_eagle_ext.cli import app

    _import()
    words = ["check", str(TINY / draft), "--target", str(TINY / TARGETS.get(draft, "target")), "-k", "3"]
    return lambda: CliRunner().invoke(app, words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("draft", nargs="?", default="postnorm", help="a folder of examples/tiny")
    parser.add_argument("--check", action="store_true", help="count `vllm-eagle check`, not a start")
    parser.add_argument("--list", action="store_true", help="list the modules, with their calls")
    asked = parser.parse_args()
    calls = count((check if asked.check else start)(asked.draft))
    functions = {(file, name) for _, file, name in calls}
    across = sum(
        number for (caller, file, _), number in calls.items()
        if caller != file and caller.startswith(PACKAGE)
    )  # fmt: skip
    files = Counter({file: 0 for file, _ in functions})
    for (_, file, _), number in calls.items():
        files[file] += number
    print(f"{len(functions)} functions in {len(files)} modules, {calls.total()} calls, {across} across")
    if asked.list:
        for file, number in files.most_common():
            print(f"{number:6} {Path(file).relative_to(PACKAGE)}")


if __name__ == "__main__":
    main()
