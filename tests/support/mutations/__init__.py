"""Breaks a valid draft in every way that a checker could see, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.support.mutations.config import (
    drop_key,
    flag,
    identity,
    layer_ids,
    null_key,
    number,
    other_keys,
    wrong_type,
)
from tests.support.mutations.mutant import Change, Mutant, fresh
from tests.support.mutations.surroundings import surroundings
from tests.support.mutations.tensors import (
    add_tensor,
    alias_tensor,
    drop_tensor,
    quantisation,
    rename_tensor,
    reshape_tensor,
    retype_tensor,
    spoil_value,
    vocabulary_map,
)

__all__ = ["OPERATORS", "Mutant", "fresh", "mutants"]

OPERATORS: dict[str, Callable[[str], Iterator[Change]]] = {
    "drop key": drop_key,
    "null key": null_key,
    "wrong type": wrong_type,
    "number": number,
    "flag": flag,
    "layer ids": layer_ids,
    "identity": identity,
    "other keys": other_keys,
    "drop tensor": drop_tensor,
    "rename tensor": rename_tensor,
    "alias tensor": alias_tensor,
    "add tensor": add_tensor,
    "reshape tensor": reshape_tensor,
    "retype tensor": retype_tensor,
    "spoil value": spoil_value,
    "vocabulary map": vocabulary_map,
    "quantisation": quantisation,
    "surroundings": surroundings,
}


def mutants(family: str) -> Iterator[Mutant]:
    for operator, mutate in OPERATORS.items():
        for label, mutant in mutate(family):
            mutant.operator, mutant.label = operator, label
            yield mutant
