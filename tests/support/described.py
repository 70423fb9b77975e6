"""Starts and rules without an engine: what vLLM's arguments describe, and what a rule says of a case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vllm_eagle_ext.checkpoint import Case, Inspection
from vllm_eagle_ext.checkpoint.findings import Problem, Rule
from vllm_eagle_ext.options import parse_options
from vllm_eagle_ext.preflight.inspect_start import inspect_start
from vllm_eagle_ext.preflight.of_vllm import engine_of_vllm


def inspected(engine_args: Any) -> Inspection | None:
    """What a start looks at before vLLM builds its config."""
    target = engine_args.create_model_config()
    options = parse_options(engine_args.additional_config)
    return inspect_start(engine_args, target, engine_of_vllm(engine_args, target, options))


def problems(rule: Rule, case: Case, **engine: Any) -> list[Problem]:
    """What a rule says of a case whose engine differs in these fields."""
    return list(rule.check(replace(case, engine=replace(case.engine, **engine))))


@contextmanager
def without(rule: Rule, monkeypatch: Any) -> Iterator[None]:
    """Let a start go on to what the rule keeps it from."""
    from vllm_eagle_ext.preflight import inspect_start as module

    kept = tuple(one for one in module.PAIR_RULES if one is not rule)
    assert len(kept) < len(module.PAIR_RULES)
    with monkeypatch.context() as patched:
        patched.setattr(module, "PAIR_RULES", kept)
        yield
