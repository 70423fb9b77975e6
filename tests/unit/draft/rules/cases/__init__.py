"""The drafts that break each rule."""

from tests.unit.draft.rules.cases import (
    blocks,
    claims,
    config,
    keys,
    norms,
    quantisation,
    runners,
    second_heads,
    target,
    tensors,
    vocabulary,
)

CASES = [
    *claims.CASES,
    *config.CASES,
    *tensors.CASES,
    *norms.CASES,
    *vocabulary.CASES,
    *target.CASES,
    *quantisation.CASES,
    *runners.CASES,
    *blocks.CASES,
    *second_heads.CASES,
    *keys.CASES,
]
