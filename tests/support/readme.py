"""The commands that the guides show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.engine import ROOT

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

README = ROOT / "README.md"
USAGE, GATED, ADAPTIVE, VOCABULARY, SERVING = (
    ROOT / page
    for page in (
        "docs/usage.md", "docs/gated.md", "docs/adaptive.md", "docs/draft_vocabulary.md",
        "examples/serving/README.md",
    )
)  # fmt: skip
# Everything that shows a user commands.
GUIDES = (
    README,
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("CONTRIBUTING.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
)


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands(block: str) -> list[str]:
    """The commands of a block, those over several lines whole."""
    lines = re.sub(r"\\\n", " ", block)
    cmds: list[str] = []
    for line in lines.splitlines():
        if cmds and cmds[-1].count("'") % 2:  # inside a quoted value
            cmds[-1] += f"\n{line}"
        elif line and not line.startswith("#"):
            cmds.append(line)
    return cmds


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """Variables set before it, and its words."""
    words = shlex.split(command)
    variables: dict[str, str] = {}
    while re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables, words


def engine_arguments(words: list[str]) -> AsyncEngineArgs:
    """Read them as `vllm serve` does."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    given = make_arg_parser(FlexibleArgumentParser()).parse_args(words[2:])
    given.model = given.model_tag or given.model  # a config file names it as `model`
    return AsyncEngineArgs.from_cli_args(given)
