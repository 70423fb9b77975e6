# SPDX-License-Identifier: Apache-2.0
"""Makes a finding of an error of vLLM's, or of transformers: its words, the file, the edit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from vllm_eagle_ext.draft.findings import Finding, Problem, apply_rules
from vllm_eagle_ext.draft.silent_keys import edit
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.printable import printable
from vllm_eagle_ext.start.rules import refused_at_start, vllm_says

# Keys of the speculative config as other engines and older releases call them.
ALSO_CALLED = {
    "num_steps": "num_speculative_tokens", "k": "num_speculative_tokens", "draft_model": "model",
    "speculative_model": "model", "algorithm": "method", "tp": "draft_tensor_parallel_size",
    "draft_tp": "draft_tensor_parallel_size", "acceptance_method": "rejection_sample_method",
    "tensor_parallel_size": "draft_tensor_parallel_size",
}  # fmt: skip
_CLIP = 600  # characters of a message; some list all 400 architectures
_TAIL = re.compile(r" \[type=.*|For further information visit .*", re.DOTALL)
_KEY = re.compile(r"[Ff]ield '(\w{1,64})'|'(\w{1,64})' is not a valid argument")
_ANY_FILE = "correct what vLLM names there"


def finding_of(
    error: BaseException, *, draft: str, target: str, speculative: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Finding:  # fmt: skip
    """Return the finding of an error that ended a start.

    Args:
        draft: its name.
        target: its name.
        speculative: the keys that the start was given.
        config: the draft's config.json.
    """
    if isinstance(error, EagleExtError):
        own = Problem(field=error.field, value=error.value, allowed=error.allowed, remedy=error.remedy)
        return apply_rules((refused_at_start,), problem=own)[0]
    words, keys = words_of(error)
    field, value, remedy = _place(error, draft, target), "refused by vLLM", _ANY_FILE
    if key := next((key for key in keys if key in speculative), None):
        field, value = f"speculative_config.{key}", speculative[key]
        remedy = f'write "{ALSO_CALLED[key]}", if that is meant' if key in ALSO_CALLED else "correct it"
        remedy += ", or leave the key out"
    elif key := next((key for key in keys if key in config and draft in field), None):
        value, remedy = config[key], edit(key, config[key], lambda guess: guess != config[key])
        field = f"{key} in the {field}"
    if "MTP" in words:
        remedy = "write another model_type in the draft's config.json: vLLM takes it for a target's"
    problem = Problem(field=field, value=value, allowed=f"vLLM says: {words}", remedy=remedy)
    return apply_rules((vllm_says,), problem=problem)[0]


def _place(error: BaseException, draft: str, target: str) -> str:
    """Say whose file or which words a start ended at, by the functions of vLLM that it was in."""
    inside = {frame.f_code.co_name for each in chain(error) for frame, _ in walk_tb(each.__traceback__)}
    if "create_speculative_config" in inside:
        reads = inside & {"get_config", "get_config_dict", "from_dict", "create_model_config"}
        built = any(name == "__post_init__" for name in inside) and "verify_model_type" in inside
        return f"config.json of the draft {draft!r}" if reads or built else "speculative_config"
    if "create_model_config" in inside or "maybe_override_with_speculators" in inside:
        return f"the target {target!r}, or a word for it,"
    return "the command's options"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__cause__ or each.__context__


def words_of(error: BaseException) -> tuple[str, list[str]]:
    """Return the first thing that an error says, on one line, and the keys that it names."""
    keys: list[str] = []
    said = type(error).__name__
    with suppress(Exception):  # a stranger's value may be in it
        said = str(error)
    with suppress(Exception):  # pydantic's, which lists several
        first = error.errors()[0]  # type: ignore[attr-defined]
        keys = [str(part) for part in first["loc"]]
        said = ": ".join([*keys, str(first["msg"]).removeprefix("Value error, ")])
    lines = [line.strip() for line in _TAIL.sub("", said).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1]) or type(error).__name__
    if isinstance(error, KeyError | AttributeError | TypeError | AssertionError | IndexError):
        said = f"{type(error).__name__}: {said}"
    keys += [field or argument for field, argument in _KEY.findall(said)]
    cut = said if len(said) <= _CLIP else f"{said[:_CLIP]} .."
    return printable(cut), keys
