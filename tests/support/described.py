"""Starts and rules without an engine: vLLM's own config of a tiny pair, changed in a field or two, and
what a rule says of it."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engine import TINY
from vllm_eagle_ext import plugin
from vllm_eagle_ext.draft import Case, Inspection
from vllm_eagle_ext.draft.findings import Problem, Rule
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.start import build
from vllm_eagle_ext.start.ask import draft_request
from vllm_eagle_ext.start.build import inspect_start


def inspected(engine_args: Any) -> Inspection | None:
    """What a start looks at before vLLM builds its config."""
    from vllm.config import ParallelConfig

    target = engine_args.create_model_config()
    options = parse_options(engine_args.additional_config)
    request = draft_request(engine_args, target, ParallelConfig(), options)
    return inspect_start(engine_args, target, request)


@cache
def tiny_config(target: str = "target", draft: str = "postnorm", method: str = "eagle3") -> Any:
    """vLLM's config of a pair that is served."""
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    given = {"method": method, "model": str(TINY / draft), "num_speculative_tokens": 4}
    arguments = EngineArgs(
        model=str(TINY / target), skip_tokenizer_init=True, speculative_config=given,
        enable_prefix_caching=False,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        return arguments.create_engine_config()


def without(rule: Rule, monkeypatch: Any) -> None:
    """Let starts go on to what the rule keeps them from."""
    assert rule in build.ENGINE_RULES
    kept = tuple(each for each in build.ENGINE_RULES if each is not rule)
    monkeypatch.setattr(build, "ENGINE_RULES", kept)


class _Changed:
    """A config with other values of some fields."""

    def __init__(self, config: Any, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def changed(config: Any, **fields: Any) -> Any:
    """The config with other values: `speculative_config__quantization` is a field of a field."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        name, _, rest = path.partition("__")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value
    own |= {name: changed(getattr(config, name), **given) for name, given in inner.items()}
    return _Changed(config, own)


def with_text(config: Any, **keys: Any) -> Any:
    """The config of a target whose language model states other keys."""
    text = config.model_config.hf_text_config.to_dict() | keys
    return changed(config, model_config__hf_text_config=SimpleNamespace(to_dict=lambda: text))


def problems(rule: Rule, config: Any, case: Case | None = None, **options: Any) -> list[Problem]:
    """What a rule says of a config, and of a case beside it."""
    subjects = {"config": config, "case": case, "options": Options(**options)}
    needed, taken = rule.needs
    assert all(subjects[name] is not None for name in needed)
    return list(rule.check(**{name: subjects[name] for name in taken}))
