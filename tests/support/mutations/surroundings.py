"""Breaks what the draft is served with."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.mutations.mutant import Change, fresh


def surroundings(family: str) -> Iterator[Change]:
    """Another target, another request, other files beside the draft."""
    for key, value in (("vocab_size", 200), ("hidden_size", 96), ("rope_theta", 5e5)):
        mutant = fresh(family)
        mutant.target[key] = value
        yield f"target {key}", mutant
    mutant = fresh(family)
    mutant.max_model_len = 4096
    yield "max_model_len", mutant
    mutant = fresh(family)
    mutant.draft.k += 5
    yield "K", mutant
    mutant = fresh(family)
    mutant.runner = "v1" if mutant.runner == "v2" else "v2"
    yield "the other runner", mutant
    mutant = fresh(family)
    mutant.runner = None
    yield "runner not known", mutant
    mutant = fresh(family)
    mutant.as_bin = True
    yield ".bin", mutant
    mutant = fresh(family)
    mutant.parallel_drafting = False
    yield "no parallel drafting", mutant
    mutant = fresh(family)
    tokens = '{"model": {"vocab": {"a": 0, "b": 1}}}'
    mutant.files = {"tokenizer.json": tokens.replace("1", "2")}
    mutant.target_files = {"tokenizer.json": tokens}
    yield "tokenizer", mutant
