"""Runs engines on a hybrid target one after the other in one process.

python -m tests.support.hybrid_process JOBS RESULT, where JOBS is a JSON list of `HybridRun`s. A run may
name an earlier one whose texts its oracle drafts are to follow.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.support import breakage, in_process, triton_on_cpu
from tests.support.in_process import close, keep_kernels


def build(run: dict[str, Any]) -> Any:
    options = {} if run["state"] is None else {"hybrid_state": run["state"]}
    return in_process.build(run, "tests.support.oracle_drafts.OracleDrafts", options)


def generate(llm: Any, run: dict[str, Any], prompt_ids: list[list[int]]) -> list[Any]:
    from vllm import SamplingParams

    lengths = run["max_tokens"]
    if isinstance(lengths, int):
        lengths = [lengths] * len(run["prompts"])
    params = [
        SamplingParams(
            temperature=run["temperature"],
            seed=run["sampling_seed"],
            max_tokens=length,
            ignore_eos=True,
            detokenize=False,
            logprobs=run["logprobs"],
        )
        for length in lengths
    ]
    outputs: list[Any] = []
    width = run["concurrency"] or len(params)
    prompts = [{"prompt_token_ids": prompt} for prompt in prompt_ids]
    for start in range(0, len(prompts), width):
        part = slice(start, start + width)
        outputs += llm.generate(prompts[part], params[part], use_tqdm=False)
    return outputs


def generate_with_aborts(llm: Any, run: dict[str, Any]) -> dict[str, Any]:
    """Requests whose number is in `abort_after` end after so many steps. Texts of the others, how many
    blocks are still taken when all is over (one is vLLM's null block), and the most state blocks that a
    request held in any recurrent group."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(
        temperature=0, max_tokens=run["max_tokens"], ignore_eos=True, detokenize=False
    )
    for number, prompt in enumerate(run["prompts"]):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    texts, steps, held = {}, 0, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                texts[int(output.request_id)] = list(output.outputs[0].token_ids)
        steps += 1
        held = max(held, state_blocks_held(engine))
        engine.abort_request([n for n, after in run["abort_after"].items() if after == steps])
    pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    taken = pool.num_gpu_blocks - pool.get_num_free_blocks()
    return {"finished": texts, "blocks_taken": taken, "state_blocks_held": held}


def state_blocks_held(engine: Any) -> int:
    """The most of any running request, as the scheduler's block tables have it now."""
    from vllm.v1.kv_cache_interface import MambaSpec

    manager = engine.engine_core.engine_core.scheduler.kv_cache_manager
    recurrent = [
        isinstance(group.kv_cache_spec, MambaSpec) for group in manager.kv_cache_config.kv_cache_groups
    ]
    running = engine.engine_core.engine_core.scheduler.running
    tables = [manager.get_block_ids(request.request_id) for request in running]
    null = manager.block_pool.null_block.block_id
    return max(
        (
            sum(block != null for block in blocks)
            for table in tables
            for blocks, is_recurrent in zip(table, recurrent, strict=True)
            if is_recurrent
        ),
        default=0,
    )


def counters(llm: Any) -> dict[str, Any]:
    found = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:")
        if name.startswith(("spec_decode", "num_preemptions", "prefix_cache", "external_prefix")):
            found[name] = getattr(metric, "value", None) or getattr(metric, "values", 0)
    return found


def saves() -> dict[str, int]:
    """Blocks that a watched engine saved to the host."""
    from tests.support.host_offloading import HostCopies

    counts = {"overwritten": HostCopies.overwritten, "cleared": HostCopies.cleared}
    return {"all": HostCopies.saved, **counts}


def serve(run: dict[str, Any], earlier: dict[str, Any], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`patch`: of this process, in which the worker lives."""
    triton_on_cpu.norm_each_layers_keys(patch.setattr)
    if os.environ.get("TRITON_INTERPRET") == "1":
        triton_on_cpu.take_masks_of_scalars(patch.setattr)
    if run["kernels"] is not None:
        triton_on_cpu.use(run["kernels"], patch.setattr)
    if run["broken_at_start"] is not None:
        breakage.apply(run["broken_at_start"], patch.setattr)
    llm = build(run)
    if run["broken"] is not None:
        breakage.apply(run["broken"], patch.setattr)
    if run["follow"] is not None:
        k = run["speculative"]["num_speculative_tokens"]
        texts = run["follow"]
        texts = earlier[texts]["texts"] if isinstance(texts, str) else texts
        llm.collective_rpc("set_oracle", args=(texts, run["right"], k, 1536))
    if run["abort_after"]:
        result = generate_with_aborts(llm, run)
        close(llm)
        return result
    if run["record"]:
        llm.collective_rpc("start_recording")
    seconds = []
    for _ in range(run["repeats"]):
        started = time.perf_counter()
        outputs = generate(llm, run, run["prompts"])
        seconds.append(time.perf_counter() - started)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    texts = [prompt + own for prompt, own in zip(run["prompts"], tokens, strict=True)]
    drafts = recorded(llm) if run["record"] else []
    first_counters = counters(llm)
    second_turn: list[Any] = []
    if run["forget"]:
        assert llm.reset_prefix_cache()
    if run["then"]:
        second_turn = generate(llm, run, [text + run["then"] for text in texts])
        texts = [list(o.prompt_token_ids) + list(o.outputs[0].token_ids) for o in second_turn]
    result = {
        "tokens": tokens,
        "drafts": drafts,
        "texts": texts,
        "second_turn": [list(output.outputs[0].token_ids) for output in second_turn],
        "second_cached": [output.num_cached_tokens for output in second_turn],
        "logprobs": logprobs_of(outputs),
        "second_logprobs": logprobs_of(second_turn),
        "cached": [output.num_cached_tokens for output in outputs],
        "seconds": seconds,
        "first_counters": first_counters,
        "counters": counters(llm),
        "saves": saves() if run["broken"] in (breakage.SAVES_WATCHED, breakage.SAVES_FIRST) else None,
        "steps": llm.collective_rpc("take_steps")[0],
        "state_blocks": llm.collective_rpc("state_blocks")[0],
        "workers": llm.collective_rpc("identity") if run["record"] else [],
    }
    close(llm)
    return result


def logprobs_of(outputs: list[Any]) -> list[list[dict[str, float]]]:
    return [
        [{str(t): e.logprob for t, e in at.items()} for at in output.outputs[0].logprobs or []]
        for output in outputs
    ]


def recorded(llm: Any) -> list[list[list[int]]]:
    """Drafts per prompt; vLLM numbers requests in the order of the prompts."""
    drafts, *of_other_ranks = llm.collective_rpc("take_drafts")
    assert all(drafts == other for other in of_other_ranks)
    return [drafts[request] for request in sorted(drafts, key=lambda name: int(name.split("-")[0]))]


def main() -> None:
    results: dict[str, Any] = {}
    for run in json.loads(Path(sys.argv[1]).read_text()):
        print(f"=== {run['name']}", flush=True)
        try:
            with pytest.MonkeyPatch.context() as patch:
                results[run["name"]] = serve(run, results, patch)
        except Exception as error:  # noqa: BLE001 - the next run must have its turn
            results[run["name"]] = {
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc(),
            }
        keep_kernels()
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
