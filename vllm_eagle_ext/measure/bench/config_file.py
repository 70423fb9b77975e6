# SPDX-License-Identifier: Apache-2.0
"""Reads a config as `vllm-eagle tune` prints it, which a bench measures as one more variant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.results import GivenConfig
from vllm_eagle_ext.measure.bench.rows import SCHEDULE
from vllm_eagle_ext.measure.engine.arguments import require_served
from vllm_eagle_ext.options import KEY
from vllm_eagle_ext.preflight.draft_request import speculative_keys
from vllm_eagle_ext.preflight.offline.run import CheckRequest, run_check
from vllm_eagle_ext.preflight.offline.serve import speculative_config

_SPECULATIVE, _ADDITIONAL = "speculative_config", "additional_config"
_AGAIN = "give the report.json of a `vllm-eagle tune`, or the two configs that it prints as one object"
_OWN = ("model", "method", "num_speculative_tokens", "parallel_drafting", "revision")


def settle_config(
    path: Path, *, target: str, drafts: Sequence[str], engine: Mapping[str, Any]
) -> GivenConfig:
    """Read a file, hold it against the command, and check it by the rules of a start.

    Args:
        target: of the command.
        drafts: of the command; the config's is named as it is there.
        engine: keywords of LLM().

    Raises:
        SpeculativeConfigError: the file holds no such config, or that of another pair.
        UnsupportedDraftError: a start would refuse it.
        OptionsError: of its additional_config.
    """
    given = _given(path, target)
    own = speculative_keys(given[_SPECULATIVE])
    k = _whole_k(path, own)
    draft = _named_draft(path, own.get("model"), drafts)
    _require_schedule(path, own.get(SCHEDULE), k)
    additional = given[_ADDITIONAL]
    options = additional.get(KEY, {})
    _require(isinstance(options, dict), path, f"{_ADDITIONAL}.{KEY}", options, "an object")
    if not options.get("enabled", True):
        raise _wrong(path, f"{_ADDITIONAL}.{KEY}.enabled", False, "true: it is served by this package")
    asked = CheckRequest.for_engine(
        engine, draft=draft, draft_field=f"--config {path}: {_SPECULATIVE}.model", target=target, k=k,
        method=own.get("method"), revision=own.get("revision"), options=options,
        speculative={key: value for key, value in own.items() if key not in _OWN},
    )  # fmt: skip
    result = run_check(asked)
    require_served(result, f"--config {path}")
    served = {**own, **speculative_config(result), "model": draft}
    return GivenConfig(draft=draft, speculative_config=served, additional_config=additional)


def _given(path: Path, target: str) -> dict[str, dict[str, Any]]:
    """Both configs of the file, as objects."""
    found = _read_object(path)
    if "surface" in found and isinstance(found.get("settings"), dict):
        found = _of_report(path, found, target)
    elif others := sorted(set(found) - {_SPECULATIVE, _ADDITIONAL}):
        allowed = f"{_SPECULATIVE} and {_ADDITIONAL}, or a report of `vllm-eagle tune`"
        raise _wrong(path, "keys", others, allowed, "give what else the engine takes by --engine")
    speculative, additional = found.get(_SPECULATIVE), found.get(_ADDITIONAL)
    _require(isinstance(speculative, dict), path, _SPECULATIVE, speculative, "an object")
    _require(isinstance(additional, dict | None), path, _ADDITIONAL, additional, "an object, or none")
    return {_SPECULATIVE: speculative or {}, _ADDITIONAL: additional or {}}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise _wrong(path, None, str(path), f"a file that can be read ({error.strerror})") from None
    except ValueError as error:
        raise _wrong(path, None, str(path), f"a file of JSON ({error})") from None
    if not isinstance(found, dict):
        raise _wrong(path, None, type(found).__name__, "an object")
    return found


def _of_report(path: Path, report: dict[str, Any], target: str) -> dict[str, Any]:
    """The config that a tune printed.

    Raises:
        SpeculativeConfigError: it printed none, or was of another target.
    """
    measured = report["settings"].get("target")
    _require(
        _is_same(measured, target), path, "settings.target", measured, f"{target}, the --target",
        "measure the target that was tuned, or tune this one",
    )  # fmt: skip
    config = report.get("config")
    if not isinstance(config, dict) or config.get(_SPECULATIVE) is None:
        raise _wrong(
            path, "config", config, "a speculative_config: this tune found that no draft pays, or "
            "measured step times alone", "leave --config out, or tune without --surface-only",
        )  # fmt: skip
    return config


def _named_draft(path: Path, named: object, drafts: Sequence[str]) -> str:
    """The draft as the command names it."""
    for draft in drafts:
        if _is_same(named, draft):
            return draft
    allowed = f"one of the command's: {', '.join(drafts) or 'none is named'}"
    remedy = f"name it as well: --draft {named}" if isinstance(named, str) else ""
    raise _wrong(path, f"{_SPECULATIVE}.model", named, allowed, remedy)


def _is_same(named: object, asked: str) -> bool:
    """Whether both are the same name, or the same folder."""
    if not isinstance(named, str):
        return False
    one, other = Path(named).expanduser(), Path(asked).expanduser()
    return named == asked or (one.is_dir() and other.is_dir() and one.resolve() == other.resolve())


def _whole_k(path: Path, own: Mapping[str, Any]) -> int:
    k = own.get("num_speculative_tokens")
    if type(k) is not int or k < 1:
        raise _wrong(path, f"{_SPECULATIVE}.num_speculative_tokens", k, "a whole number above 0")
    return k


def _require_schedule(path: Path, schedule: object, k: int) -> None:
    """Require what vLLM takes for a schedule, which it says in the engine alone."""
    if schedule is None:
        return
    end, entries = 0, schedule if isinstance(schedule, list) else []
    for entry in entries:
        if not (isinstance(entry, list) and [type(part) for part in entry] == [int] * 3):
            break
        first, last, length = entry
        if first > last or first <= end or (end == 0 and first != 1) or not 0 <= length <= k:
            break
        end = last
    else:
        if entries:
            return
    raise _wrong(
        path, f"{_SPECULATIVE}.{SCHEDULE}", schedule, "[first, last, K] of whole numbers, by rising "
        f"numbers of requests from 1 on, with K from 0 to {k}",
    )  # fmt: skip


def _require(holds: bool, path: Path, name: str, value: object, allowed: str, remedy: str = "") -> None:
    if not holds:
        raise _wrong(path, name, value, allowed, remedy)


def _wrong(
    path: Path, name: str | None, value: object, allowed: str, remedy: str = ""
) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field=f"--config {path}: {name}" if name else "--config",
        value=value,
        allowed=allowed,
        remedy=remedy or _AGAIN,
    )
