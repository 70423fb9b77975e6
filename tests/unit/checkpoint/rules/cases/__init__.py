"""Of every rule, the drafts that break it."""

from tests.unit.checkpoint.rules.cases import (
    blocks,
    claims,
    config,
    norms,
    quantisation,
    runners,
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
]
