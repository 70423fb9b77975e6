"""The records of the drafter families, and what derives from them."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from vllm_eagle_ext.draft import registry
from vllm_eagle_ext.draft.rules import RULES, rules_for
from vllm_eagle_ext.families.drafter_classes import drafters

FAMILIES = list(registry.families().values())


def test_every_rule_is_for_some_family():
    assert {*RULES} <= {rule for family in FAMILIES for rule in rules_for(family)}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_hooks_of_a_family_are_there(family):
    hooks = [family.config_writer, *family.model_types.values()]
    assert all(
        callable(resolve_name(hook)) for hook in (*hooks, family.reference, family.stock_config) if hook
    )
    assert {drafter.method for drafter in family.drafters} == {family.method}


def test_an_architecture_has_one_drafter():
    served = [name for drafter in drafters() for name in drafter.published]
    assert len(served) == len(set(served))
