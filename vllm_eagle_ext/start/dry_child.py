# SPDX-License-Identifier: Apache-2.0
"""The process of a dry start: vLLM makes its config as for `vllm serve`, and no engine follows.

`python -P -m vllm_eagle_ext.start.dry_child REQUEST ANSWER` reads its parent's request from one
file, and writes one JSON object into the other.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from vllm_eagle_ext.draft import DraftFiles, Finding, Severity
from vllm_eagle_ext.draft.sources import brief
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.printable import bounded

CPU_S = 60
TUPLE = "tuple"  # JSON has none, and a shape is shown as one
_MOST_FINDINGS = 500
_REMOTE = "it needs code of the checkpoint (--trust-remote-code), which a dry start does not run"
_OF_CHECK = (  # what its own options say, in vLLM's names
    "model", "speculative_config", "tensor_parallel_size", "max_model_len", "revision", "download_dir",
    "additional_config",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRequest:
    """Holds what a parent asks: words of `vllm serve`, and what it has read."""

    words: Sequence[str]  # the target first
    further: int = 0  # words at the end that a user gave
    draft: str
    files: DraftFiles
    places: Mapping[str, str] = field(default_factory=dict)  # name -> the folder that stands for it
    device: str | None = None  # a key of described.DEVICES; None: the platform that is here
    room: int | None = None  # bytes of a rank to plan caches in


class _UsageError(Exception):
    """Says what vLLM's parser does not take."""


def main() -> None:
    request_file, answer_file = map(Path, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = pickle.loads(request_file.read_bytes())
    try:
        warm(request.device)
        said = answer(request)
    except ImportError as error:
        said = {"import_error": brief(error)}
    answer_file.write_text(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # libraries' threads and exit handlers have nothing to add


def warm(device: str | None) -> None:
    """Import what every dry start needs.

    Raises:
        ImportError: vLLM is missing or broken.
    """
    from vllm_eagle_ext.start import described

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
    """Make vLLM's config for a request, and say what was found on the way."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from vllm_eagle_ext.start import build, described, messages, vllm_says

    # The command's words. Of the draft's files only what the parent has read is judged.
    try:
        words = _parsed(request)
    except _UsageError as error:
        return {"usage": brief(error)}
    if words.trust_remote_code:
        return {"not_asked": _REMOTE}
    described.give_devices(words.tensor_parallel_size * words.pipeline_parallel_size)
    speculative = dict(words.speculative_config or {})
    build.READ[str(speculative.get("model"))] = replace(request.files, model=request.draft)
    # vLLM's config, with what rules find on the way. The error that ends it is the last finding.
    config, settled, server = None, {}, UsageContext.OPENAI_API_SERVER
    with messages.collecting() as collected:
        try:
            config = AsyncEngineArgs.from_cli_args(words).create_engine_config(server)
            settled = {**_settled(config), "recurrent_state": collected.state}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a start is its answer
            if why := _is_no_answer(error, request):
                return {"not_asked": why}
            own = [f.rule for f in collected.findings if f.severity == Severity.ERROR]
            last = vllm_says.finding_of(
                error, draft=request.draft, target=request.words[0], speculative=speculative,
                config=request.files.config,
            )  # fmt: skip
            if own and not isinstance(error, EagleExtError):  # a start ends before
                last = replace(last, follows_from=own[0])
            collected.add([last])
    # Its caches, where there is room to plan them in.
    plan: dict[str, Any] = {}
    if request.room is not None and config is not None:
        try:
            plan["plan"] = plan_caches(config, request.room)
        except Exception as error:  # noqa: BLE001 - whatever vLLM cannot build it does not plan
            why = f"vLLM cannot plan it here: {type(error).__name__}: {brief(error)}"
            plan["plan"] = {"failed": why}
    if described.has_cuda_context():
        return {"not_asked": "vLLM opened a CUDA context, which a dry start must not"}
    findings = [_as_json(finding, request.places) for finding in collected.findings[:_MOST_FINDINGS]]
    return plan | {"findings": findings, "inspected": collected.inspected, "settled": settled}


def _parsed(request: DryRequest) -> Any:
    """Read the words by vLLM's own parser, and put the places of checkpoints for their names."""
    target, *words = request.words
    try:
        ends = (len(words) - request.further, len(words))
        ours, args = (_parser().parse_args(["--model", target, *words[:end]]) for end in ends)
    except (SystemExit, ValueError, TypeError, OSError) as error:
        raise _UsageError(brief(error)) from None
    for name in _OF_CHECK:
        if getattr(ours, name) not in (getattr(args, name), _parser().get_default(name)):
            raise _UsageError(f"{name} is named twice: leave it out after --")
    args.model = request.places.get(target, target)
    speculative = dict(args.speculative_config or {})
    if (model := str(speculative.get("model"))) in request.places:
        args.speculative_config = {**speculative, "model": request.places[model]}
    return args


@cache
def _parser() -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise _UsageError(message)

    return AsyncEngineArgs.add_cli_args(Parser(add_help=False))


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

    from vllm_eagle_ext.start.vllm_says import chain

    errors = list(chain(error))
    if any(isinstance(each, LocalEntryNotFoundError | OfflineModeIsEnabled) for each in errors):
        return f"the hub is switched off in a dry start ({brief(error)})"
    config = Path(request.places.get(request.words[0], request.words[0])) / "config.json"
    says_so = any("trust_remote_code" in brief(each, 4000) for each in errors)
    if says_so and config.is_file() and b'"AutoConfig"' in config.read_bytes():
        return _REMOTE
    return None


def plan_caches(config: Any, room: int) -> dict[str, Any]:
    """Build target and draft, and tell what vLLM's planner makes of so many bytes of a rank."""
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.worker_base import get_current_attn_backends, get_supported_kv_cache_layouts

    from vllm_eagle_ext.start.described import build_models

    planning: Any = kv_cache_utils
    with suppress(ImportError):  # 0.33 has a module of its own for it
        from vllm.v1.core import kv_cache_planning as planning  # type: ignore[no-redef]
    # The models, up to their weights, and what they leave for caches.
    models, ranks = build_models(config), config.parallel_config.world_size
    weights = _bytes(models[0].parameters())
    tables = _bytes({id(buffer): buffer for model in models for buffer in model.buffers()}.values())
    budget = max(0, room - weights - tables)
    said: dict[str, Any] = {"budget": budget, "tables": tables, "weights": weights, "requests": 0.0}
    # Their caches, as an engine's core asks workers for them.
    with set_current_vllm_config(config):
        current_platform.update_block_size_for_backend(config)
        specs = get_kv_cache_spec(config)
        layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
        resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], specs.values())
    kinds = Counter(f"{type(spec).__name__} of {spec.block_size} tokens" for spec in specs.values())
    graphs = config.compilation_config.max_cudagraph_capture_size
    said |= {"blocks": 0, "layers": dict(kinds), "graphs": graphs}
    # The pool.
    further: list[Any] = []
    if hasattr(planning, "get_global_kv_cache_groups"):  # from 0.33 on
        further.append(planning.get_global_kv_cache_groups(config, [specs] * ranks))
    try:
        cache, *_ = planning.get_kv_cache_configs(config, [specs] * ranks, [budget] * ranks, *further)
    except ValueError as error:  # not one request fits
        return said | {"why": str(error)}
    requests = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, cache)
    return said | {"requests": requests, "blocks": cache.num_blocks}


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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


if __name__ == "__main__":
    main()
