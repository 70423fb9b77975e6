# SPDX-License-Identifier: Apache-2.0
"""Plans by the installed vLLM's own planner, which knows every kind of layer that it serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext.draft import Severity
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.footprint import GIB
from vllm_eagle_ext.plan.model_files import open_model, refusal, size_of
from vllm_eagle_ext.plan.run import PlanRequest, read_memory
from vllm_eagle_ext.printable import printable
from vllm_eagle_ext.start.check import CheckRequest, run_check
from vllm_eagle_ext.start.dry import ask_engine

_LEFT_OUT = "- Left out: what loading makes of weights. Backends are by the packages installed here."


def plan_by_vllm(request: PlanRequest, k: int) -> dict[str, Any]:
    """Ask vLLM, as a check does; return what its planner says.

    Raises:
        EagleExtError: the draft would be refused, or vLLM cannot be asked.
    """
    if request.draft is None or request.weights_gib is not None:
        lacking = "name a draft" if request.draft is None else "leave --weights-gib out"
        raise _impossible("no weights as given, and a draft: vLLM plans what it would serve", lacking)
    # The memory, less what is known to take of it.
    memory = read_memory(request)
    draft = open_model(
        request.draft, field="DRAFT", revision=request.revision, download_dir=request.download_dir
    )
    size = (size_of(draft, ".safetensors") or size_of(draft, ".bin")) / request.tp
    room = int((memory.gib * request.gpu_memory_utilization - request.reserve_gib) * GIB - size)
    # The command that vLLM is asked about.
    engine = {
        "max_model_len": request.max_model_len, "tensor_parallel_size": request.tp,
        "download_dir": request.download_dir, "revision": request.target_revision,
        "enable_prefix_caching": request.prefix_caching,
    }  # fmt: skip
    checked = run_check(CheckRequest(
        draft=request.draft, target=request.target, k=k, engine=engine, release=request.vllm,
        revision=request.revision, options=request.eagle_ext, platform=request.settled_platform,
    ))  # fmt: skip
    words = {
        "max-num-seqs": request.max_num_seqs, "kv-cache-dtype": request.kv_cache_dtype,
        "gdn-prefill-backend": request.gdn_prefill,
    }  # fmt: skip
    further = [f"--{key}={value}" for key, value in words.items() if value not in (None, "auto")]
    answer = ask_engine(checked, further, room)
    # What it says.
    for finding in answer.findings:
        if finding.severity == Severity.ERROR:
            raise refusal(finding.problem)
    if why := answer.why or answer.plan.get("failed"):
        raise _impossible(why, "change that; only hybrid targets are planned without vLLM")
    return {"k": k, "described": answer.device, **answer.settled, **answer.plan}


def _impossible(allowed: str, remedy: str) -> OptionsError:
    return OptionsError(field="a plan by vLLM", value="not possible", allowed=allowed, remedy=remedy)


def lines(plan: Mapping[str, Any]) -> Iterator[str]:
    on = f" on a described {plan['described']}" if plan["described"] else ""
    layers = ", ".join(f"{count} {kind}" for kind, count in plan["layers"].items())
    yield f"K = {plan['k']}, by vLLM's planner{on}: {layers}"
    yield f"weights  {plan['weights'] / GIB:.1f} GiB of the target on a rank, as vLLM builds them"
    yield f"KV cache {plan['budget'] / GIB:.1f} GiB on a rank, {plan['blocks']} blocks"
    yield f"requests {plan['requests']:.2f} of {plan['max_model_len']} tokens fit"
    if "why" in plan:
        yield printable(f"- vLLM would not start: {plan['why']}")
    yield _LEFT_OUT
