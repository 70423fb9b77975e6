# SPDX-License-Identifier: Apache-2.0
"""The process of a dry start: vLLM makes its config as for `vllm serve`, and no engine follows.

`python -P -m vllm_eagle_ext.preflight.dry_child REQUEST DESCRIPTOR` reads a request of its parent, and
writes one JSON object into the pipe.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from vllm_eagle_ext.checkpoint import DraftFiles, Finding, Severity
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.preflight.dry_plan import plan_caches
from vllm_eagle_ext.printable import bounded, printable

CPU_S = 60
TUPLE = "tuple"  # JSON has none, and a shape is shown as one
_MOST_FINDINGS = 500
_REMOTE = "it needs code of the checkpoint (--trust-remote-code), which a dry start does not run"
_BRIEF = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRequest:
    """Holds what a parent asks: words of `vllm serve`, and what it has read."""

    words: Sequence[str]  # the target first
    draft: str
    files: DraftFiles
    places: Mapping[str, str] = field(default_factory=dict)  # name -> the folder that stands for it
    device: str | None = None  # a key of described.DEVICES; None: the platform that is here
    room: int | None = None  # bytes of a rank to plan caches in


class _UsageError(Exception):
    """Says what vLLM's parser does not take."""


def main() -> None:
    path, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = pickle.loads(path.read_bytes())
    try:
        warm(request.device)
        found = answer(request)
    except ImportError as error:
        found = {"import_error": brief(error)}
    with os.fdopen(descriptor, "w") as pipe:
        pipe.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # libraries' threads and exit handlers have nothing to add


def warm(device: str | None) -> None:
    """Import what every dry start needs.

    Raises:
        ImportError: vLLM is missing or broken.
    """
    from vllm_eagle_ext.preflight import described

    try:
        if device is not None:
            described.describe(device)
        import vllm.engine.arg_utils  # noqa: F401

        described.look_at_classes_here()
    except ImportError:
        raise
    except Exception as error:
        raise ImportError(f"{type(error).__name__}: {error}") from error


def answer(request: DryRequest) -> dict[str, Any]:
    """Make vLLM's config for a request, and tell what was found on the way."""
    from vllm_eagle_ext.preflight import described, inspect_start, messages, vllm_says

    target = request.words[0]
    try:
        given = _parsed(request)
    except _UsageError as error:
        return {"usage": brief(error)}
    if given.trust_remote_code:
        return {"not_asked": _REMOTE}
    described.give_devices(given.tensor_parallel_size * given.pipeline_parallel_size)
    speculative = dict(given.speculative_config or {})
    place = str(speculative.get("model"))
    inspect_start.READ[place] = replace(request.files, model=request.draft)
    config, settled = None, {}
    with messages.collecting() as collected:
        try:
            config = _configured(given)
            settled = _settled(config)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a start is its answer
            if why := _is_no_answer(error, request):
                return {"not_asked": why}
            own = [f.rule for f in collected.findings if f.severity == Severity.ERROR]
            last = vllm_says.finding_of(
                error, draft=request.draft, target=target, speculative=speculative,
                config=request.files.config,
            )  # fmt: skip
            if own and not isinstance(error, EagleExtError):  # a start ends before
                last = replace(last, follows_from=own[0])
            collected.add([last])
    found: dict[str, Any] = {}
    if request.room is not None and config is not None:
        try:
            found["plan"] = plan_caches(config, request.room)
        except Exception as error:  # noqa: BLE001 - whatever vLLM cannot build it does not plan
            why = f"vLLM cannot plan it here: {type(error).__name__}: {brief(error)}"
            found["plan"] = {"failed": why}
    if described.has_cuda_context():
        return {"not_asked": "vLLM opened a CUDA context, which a dry start must not"}
    settled |= {"recurrent_state": collected.state} if settled else {}
    found["findings"] = [_as_json(f, request.places) for f in collected.findings[:_MOST_FINDINGS]]
    return found | {"inspected": collected.inspected, "settled": settled}


def _parsed(request: DryRequest) -> Any:
    """Read the words by vLLM's own parser, and put the places of checkpoints for their names.

    Raises:
        _UsageError: the parser refuses them.
    """
    target, *words = request.words
    try:
        given = _parser().parse_args(["--model", target, *words])
    except (SystemExit, ValueError, TypeError, OSError) as error:
        raise _UsageError(brief(error)) from None
    given.model = request.places.get(target, target)
    speculative = dict(given.speculative_config or {})
    if (model := str(speculative.get("model"))) in request.places:
        given.speculative_config = {**speculative, "model": request.places[model]}
    return given


@cache
def _parser() -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise _UsageError(message)

    return AsyncEngineArgs.add_cli_args(Parser(add_help=False))


def _configured(given: Any) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    return AsyncEngineArgs.from_cli_args(given).create_engine_config(UsageContext.OPENAI_API_SERVER)


def _settled(config: Any) -> dict[str, Any]:
    speculative = config.speculative_config
    draft = speculative and speculative.draft_model_config
    return {
        "target": config.model_config.architecture,
        "draft": draft and draft.architecture,
        "method": speculative and speculative.method,
        "num_speculative_tokens": speculative and speculative.num_speculative_tokens,
        "runner": "v2" if config.use_v2_model_runner else "v1",
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "max_model_len": config.model_config.max_model_len,
    }


def _is_no_answer(error: BaseException, request: DryRequest) -> str | None:
    """Say why an error of a dry start is none of a start's."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    chain, now = [], error
    while now is not None and now not in chain:
        chain.append(now)
        now = now.__cause__ or now.__context__  # type: ignore[assignment]
    if any(isinstance(one, LocalEntryNotFoundError | OfflineModeIsEnabled) for one in chain):
        return f"the hub is switched off in a dry start ({brief(error)})"
    config = Path(request.places.get(request.words[0], request.words[0])) / "config.json"
    says_so = any("trust_remote_code" in brief(one, 4000) for one in chain)
    if says_so and config.is_file() and b'"AutoConfig"' in config.read_bytes():
        return _REMOTE
    return None


def _as_json(finding: Finding, places: Mapping[str, str]) -> dict[str, Any]:
    """Write a finding; a place is called by the name that it stands for."""

    def named(value: Any) -> Any:
        if isinstance(value, str):
            for name, place in places.items():
                value = value.replace(place, name)
            return value
        if isinstance(value, Mapping):
            return {str(key): named(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [named(inner) for inner in value]
        return value if value is None or isinstance(value, bool | int | float) else str(value)

    problem = {name: bounded(named(part)) for name, part in asdict(finding.problem).items()}
    if isinstance(finding.problem.value, tuple) and isinstance(problem["value"], list):
        problem["value"] = {TUPLE: problem["value"]}
    parts = {"rule": finding.rule, "severity": str(finding.severity), "can_run": finding.can_run}
    return {**parts, "follows_from": finding.follows_from, "problem": problem}


def brief(error: BaseException, most: int = _BRIEF) -> str:
    """Say an error on one line."""
    return printable(" ".join(str(error).split())[:most]) or type(error).__name__


if __name__ == "__main__":
    main()
