# SPDX-License-Identifier: Apache-2.0
"""Composes the command that serves a checked draft."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.draft.registry import drafter_of
from vllm_eagle_ext.draft.rules.request import passed_positions, wanted_runner
from vllm_eagle_ext.draft.sources import download_command, split_subfolder
from vllm_eagle_ext.options import KEY
from vllm_eagle_ext.printable import shell_line
from vllm_eagle_ext.start.ask import speculative_keys
from vllm_eagle_ext.start.check import usual_k

if TYPE_CHECKING:
    from vllm_eagle_ext.start.check import CheckRequest, CheckResult

# Of a node's memory, on a CPU: vLLM's default asks for 0.92 of it to be free. More for a large target.
CPU_MEMORY = 0.3
# Keywords of LLM() that the command repeats.
_PASSED_ON = {"revision": "--revision", "model_impl": "--model-impl"}


def serve_command(result: CheckResult, *, in_one: str | None = None, further: Sequence[str] = ()) -> str:
    """Compose the line to paste; K defaults to what the draft was trained for, or 3.

    Where only one of vLLM's model runners can draft with it, the line says so.

    Args:
        in_one: a draft that names target and K itself.
        further: words of `vllm serve` that the user gave.
    """
    settings = "".join(f"{name}={value} " for name, value in serve_environment(result).items())
    return settings + shell_line(["vllm", "serve", *serve_words(result, in_one=in_one, further=further)])


def serve_words(
    result: CheckResult, *, in_one: str | None = None, further: Sequence[str] = ()
) -> list[str]:
    """Compose the words after `vllm serve`; vLLM follows the last of those that it is given twice."""
    request, ranks = result.request, result.tensor_parallel_size
    draft = ["--speculative-config", json.dumps(speculative_config(result))]
    words = [in_one] if in_one else [result.target_name, *draft]
    for key, option in _PASSED_ON.items():
        if request.engine.get(key):
            words += _option(option, str(request.engine[key]))
    # Texts as long as the target's may pass the draft's positions.
    spec, most = result.inspection.spec, result.target.max_position_embeddings
    if length := request.engine.get("max_model_len") or (spec and passed_positions(spec, most)):
        words += ["--max-model-len", str(length)]
    if request.download_dir:
        words += _option("--download-dir", request.download_dir)
    if ranks > 1:
        words += ["--tensor-parallel-size", str(ranks)]
    if result.prefix_caching is not None:
        words.append(f"--{'' if result.prefix_caching else 'no-'}enable-prefix-caching")
    if result.platform == "cpu":
        words += ["--gpu-memory-utilization", str(CPU_MEMORY)]
    if request.options:
        words += ["--additional-config", json.dumps({KEY: dict(request.options)})]
    return [*words, *further]


def _option(name: str, value: str) -> list[str]:
    """Write an option; a value that begins with a dash would be taken for another one."""
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def serve_environment(result: CheckResult) -> dict[str, str]:
    """Return the variables that the command sets."""
    spec, draft_request = result.inspection.spec, result.draft_request
    if spec is None or result.platform == "cpu":  # which has one runner
        return {}
    runner = wanted_runner(spec, before_033=draft_request.before_033)
    return {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner[0] == "v2"))} if runner else {}


def speculative_config(result: CheckResult) -> dict[str, Any]:
    """Make the speculative config that the draft is served with."""
    request, spec = result.request, result.inspection.spec
    is_known = spec or request.method or drafter_of(result.files.config, None)
    # Else vLLM finds the method by itself.
    config: dict[str, Any] = {"method": result.method} if is_known else {}
    config["model"] = served_from(result)
    # What no option and no draft decides stays as it was given: vLLM judges it.
    given = speculative_keys(request.speculative)
    if request.method is None and given.get("method") is not None:
        config["method"] = given["method"]
    k = given.get("num_speculative_tokens")
    config["num_speculative_tokens"] = request.k or (usual_k(spec) if k is None else k)
    if request.revision and not _is_inside(request):
        config["revision"] = request.revision
    if spec and spec.family.asks_for_parallel_drafting:
        config["parallel_drafting"] = True
    return {**request.speculative, **config}


def as_decided(engine: Mapping[str, Any], checked: Iterable[CheckResult]) -> dict[str, Any]:
    """Add to the keywords of LLM() what the checks decided of those that the caller left open.

    The result is for every engine that is compared, also one without the draft.
    """
    caches = [each.prefix_caching for each in checked if each.prefix_caching is not None]
    return {**engine, "enable_prefix_caching": caches[0]} if caches else dict(engine)


def served_from(result: CheckResult) -> str:
    """Name the draft; a repository's folder by its place in the hub's cache, or by its download's."""
    request = result.request
    if not _is_inside(request):
        return request.draft
    cached = result.files.folder
    return str(cached) if cached else download_command(request.draft, None)[1]


def download_line(result: CheckResult) -> str | None:
    """Compose the download of a repository's folder, which vLLM does not take.

    Returns:
        None for other drafts, and where the folder lies in the hub's cache.
    """
    request = result.request
    if not _is_inside(request) or result.files.folder:
        return None
    return shell_line(download_command(request.draft, request.revision)[0])


def _is_inside(request: CheckRequest) -> bool:
    is_folder = os.path.isdir(os.path.expanduser(request.draft))
    return not is_folder and split_subfolder(request.draft) is not None


def not_looked_at(result: CheckResult, *, asked: bool = False) -> list[str]:
    """List what an engine's start, or the engine, may still stumble over.

    Args:
        asked: vLLM was, with its options.
    """
    files, parts = result.files, []
    if files.weights == "bin":
        parts.append("the content of the .bin weights")
    elif not files.all_are_read:
        parts.append("values of large tensors (--weights reads them)")
    return [
        *parts,
        "the target's weights",
        "free memory",
        *["other options of vllm serve"] * (not asked),
    ]
