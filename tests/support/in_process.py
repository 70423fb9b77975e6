"""Engines one after the other in one process: how they are built, asked, read and ended."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any


def build(job: dict[str, Any], worker: str, options: dict[str, Any]) -> Any:
    """An engine of a job's target, engine_args and speculative config.

    Args:
        worker: extension of vLLM's worker, "package.module.Class".
        options: additional_config.eagle_ext.
    """
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": job["target"],
        "max_model_len": 1024,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.3,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "seed": 0,
        "worker_extension_cls": worker,
        **job["engine_args"],
    }
    if job["speculative"] is not None:
        arguments["speculative_config"] = job["speculative"]
        arguments["per_request_spec_decode_metrics"] = "summary"
    if options:
        arguments["additional_config"] = {"eagle_ext": options}
    return LLM(**arguments)


def close(llm: Any) -> None:
    """End an engine. The caller drops its own reference."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    group = llm.llm_engine.vllm_config.parallel_config.placement_group
    if group is not None:  # Ray's devices, which the next engine waits for
        import ray

        ray.util.remove_placement_group(group)
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()


def keep_kernels() -> None:
    """vLLM's own kernels are in place once an engine was built, and its second scan of all modules trips
    over numba's (0.32)."""
    from vllm.platforms import current_platform

    type(current_platform).register_triton_kernel_overrides = lambda *_: None


def sampling_params(params: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = {"temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False} | params
    if "logit_bias" in params:  # JSON has no numbers for keys
        params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
    if "json" in params:
        schema = params.pop("json")
        params["structured_outputs"] = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    return SamplingParams(**params)


def logprobs_of(positions: Iterable[Any] | None) -> list[dict[str, float]]:
    return [{str(token): entry.logprob for token, entry in at.items()} for at in positions or []]


def counters(llm: Any) -> dict[str, Any]:
    counts = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:")
        if name.startswith(("spec_decode", "num_preemptions", "prefix_cache", "external_prefix")):
            counts[name] = getattr(metric, "value", None) or getattr(metric, "values", 0)
    return counts


def generate_with_aborts(
    llm: Any, prompts: list[list[int]], max_tokens: int, abort_after: dict[str, int]
) -> dict[str, Any]:
    """Requests whose number is in `abort_after` end after so many steps. Texts of the others, how many
    blocks are still taken when all is over (one is vLLM's null block), and the most state blocks that a
    request held in any recurrent group."""
    engine = llm.llm_engine
    params = sampling_params({"max_tokens": max_tokens, "detokenize": False})
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    texts, steps, held = {}, 0, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                texts[int(output.request_id)] = list(output.outputs[0].token_ids)
        steps += 1
        held = max(held, state_blocks_held(engine))
        engine.abort_request([n for n, after in abort_after.items() if after == steps])
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
