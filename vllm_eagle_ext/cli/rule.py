# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle rule`: what a rule that `check` or a start names wants."""

from __future__ import annotations

from difflib import get_close_matches
from inspect import getdoc
from typing import Annotated

import typer

from vllm_eagle_ext.cli.terminal import console, fail
from vllm_eagle_ext.printable import shown


def rule(name: Annotated[str, typer.Argument(help="Name a rule as `check` prints it.")]) -> None:
    """Explain a rule that `check` names, and how grave it is.

    Exits with 0, and with 2 if no rule has the name.
    """
    from vllm_eagle_ext.checkpoint.registry import families
    from vllm_eagle_ext.checkpoint.rules import every_rule, rules_for
    from vllm_eagle_ext.engine_rules import ENGINE_RULES, UNTESTED_RULES

    rules = {each.name: each for each in (*every_rule(), *ENGINE_RULES, *UNTESTED_RULES)}
    if name not in rules:
        close = get_close_matches(name, rules)
        fail(f"No rule is called {shown(name)}." + (f" Close: {', '.join(close)}." if close else ""))
    asked, out = rules[name], console()
    raised = f", a start raises {asked.error.__name__}" if asked.severity == "error" else ""
    relaxed = "; `strict: false` makes it a warning" if raised and asked.can_run else ""
    out.print(f"{name}: {asked.severity}{raised}{relaxed}")
    if asked.of is not None:
        titles = [family.title for family in families().values() if asked in rules_for(family)]
        out.print(f"For {', '.join(titles)}.")
    words = getdoc(asked.check) or f"{name.replace('_', ' ').capitalize()}."
    for line in ("", *words.split("\n")):
        out.print(line)
