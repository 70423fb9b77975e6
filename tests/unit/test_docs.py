"""docs/drafts.md lists the rules as they are."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_eagle_ext.checkpoint.rules import EARLY_RULES, RULES

TEXT = (Path(__file__).parents[2] / "docs/drafts.md").read_text()


def test_every_rule_has_its_row():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \|", TEXT, re.MULTILINE))
    expected = {}
    for rule in (*EARLY_RULES, *RULES):
        can_run = ", can run" if rule.severity == "error" and rule.can_run else ""
        expected[rule.name] = rule.severity.value + can_run
    # Those without which nothing else can be said are no functions of one case.
    early = {"config_is_well_formed": "error", "aux_layer_ids_exist": "error"}
    early["target_is_the_drafts_own"] = "error"
    assert rows == expected | early
