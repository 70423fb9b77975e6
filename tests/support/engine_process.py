"""The program of tests that starts engines, one after the other in one process.

Its job is a list of `tests.support.batches.Engine`, its result what was found, by engine and batch.
"""

from __future__ import annotations

import importlib
import os
import time
import traceback
import zlib
from typing import Any

import pytest

from tests.support import breakage, joining
from tests.support.batches import PLACED, RECORDED, difference
from tests.support.in_process import (
    build,
    close,
    counters,
    generate_with_aborts,
    keep_kernels,
    logprobs_of,
    sampling_params,
)


def prompts_of(batch: dict[str, Any], earlier: dict[str, Any]) -> list[Any]:
    if batch["follows"] is None:
        return batch["prompts"]
    return [text + batch["then"] for text in texts_of(earlier[batch["follows"]])]


def texts_of(result: dict[str, Any]) -> list[list[int]]:
    return [prompt + own for prompt, own in zip(result["prompts"], result["tokens"], strict=True)]


def as_input(prompt: Any) -> Any:
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    if prompt["image"] is None:
        return {"prompt": prompt["prompt"]}
    from tests.support.llava import picture

    return {"prompt": prompt["prompt"], "multi_modal_data": {"image": picture(prompt["image"])}}


def params_of(llm: Any, batch: dict[str, Any], count: int) -> list[Any]:
    """`defaults` of a request: those of the target's generation_config.json, where it names no other."""
    lengths = batch["max_tokens"]
    lengths = lengths if isinstance(lengths, list) else [lengths] * count
    common = {"detokenize": batch["whole"], "logprobs": batch["logprobs"]}
    default = llm.get_default_sampling_params()
    defaults = {name: getattr(default, name) for name in ("temperature", "top_k", "top_p")}
    return [
        sampling_params(
            common
            | {"max_tokens": length}
            | (defaults if own.get("defaults") else {})
            | {name: value for name, value in own.items() if name != "defaults"}
        )
        for length, own in zip(lengths, batch["asked"] or [{}] * count, strict=True)
    ]


def generate(
    llm: Any, batch: dict[str, Any], prompts: list[Any]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Answers, and the steps of requests that join at steps of their own."""
    params = params_of(llm, batch, len(prompts))
    if batch["joins"]:
        return joining.generate(llm, prompts, params, batch["joins"])
    adapters = adapters_of(batch["lora"])
    inputs = [as_input(prompt) for prompt in prompts]
    width = batch["concurrency"] or len(prompts) or 1
    outputs: list[Any] = []
    for start in range(0, len(prompts), width):
        part = slice(start, start + width)
        lora = adapters[part] or None
        outputs += llm.generate(inputs[part], params[part], use_tqdm=False, lora_request=lora)
    return outputs, []


def adapters_of(folders: list[str | None]) -> list[Any]:
    from vllm.lora.request import LoRARequest

    return [
        folder and LoRARequest(folder, zlib.crc32(folder.encode()) >> 1, folder) for folder in folders
    ]


def in_order(by_request: dict[str, Any], first: int, count: int, absent: Any) -> list[Any]:
    """vLLM numbers requests in the order of the prompts, from `first` on."""
    by_number = {name.split("-")[0]: value for name, value in by_request.items()}
    return [by_number.get(str(number), absent) for number in range(first, first + count)]


def taken_drafts(llm: Any, kind: str | None, first: int, count: int) -> dict[str, Any]:
    if kind == PLACED:
        placed, rows = (llm.collective_rpc(name)[0] for name in ("take_placed", "take_rows"))
        return {"placed": in_order(placed, first, count, {}), "rows": in_order(rows, first, count, 0)}
    if kind == RECORDED:
        drafts, *of_other_ranks = llm.collective_rpc("take_drafts")
        assert all(drafts == other for other in of_other_ranks)
        return {"drafts": in_order(drafts, first, count, [])}
    return {"placed": [], "rows": [], "drafts": []}


def refusals(llm: Any, batch: dict[str, Any], prompt: list[int]) -> dict[str, str]:
    from vllm.exceptions import VLLMValidationError

    said = {}
    for name, params in batch["refused"].items():
        try:
            llm.generate([as_input(prompt)], sampling_params(params), use_tqdm=False)
        except VLLMValidationError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def described(completion: Any) -> dict[str, Any]:
    return {
        "tokens": list(completion.token_ids),
        "text": completion.text,
        "finish": completion.finish_reason,
        "stop": completion.stop_reason,
        "logprobs": logprobs_of(completion.logprobs),
    }


def whole_answer(output: Any) -> dict[str, Any]:
    return {
        "texts": [described(completion) for completion in output.outputs],
        "prompt_logprobs": logprobs_of(at for at in output.prompt_logprobs or [] if at),
    }


def ask_oracle(llm: Any, engine: dict[str, Any], oracle: dict[str, Any], results: dict) -> None:
    texts, k = oracle["texts"], engine["speculative"]["num_speculative_tokens"]
    if isinstance(texts, str):
        texts = texts_of(list(results[texts].values())[-1])
    llm.collective_rpc("set_oracle", args=(texts, oracle["right"], k, oracle["vocab"]))


def statistics_of(output: Any) -> dict[str, Any]:
    """vLLM's own of a request's drafts."""
    counted = output.outputs[0].spec_decode_metrics
    return {} if counted is None else {"drafted": counted.num_draft_tokens, "steps": counted.histogram}


def run_batch(llm: Any, batch: dict[str, Any], earlier: dict[str, Any], kind: str | None) -> dict:
    if batch["cold"]:
        assert llm.reset_prefix_cache()
    prompts = prompts_of(batch, earlier)
    if batch["aborts"]:
        return generate_with_aborts(llm, prompts, batch["max_tokens"], batch["aborts"])
    if batch["states"] or kind == RECORDED:
        llm.collective_rpc("start_recording")
    elif kind == PLACED:
        llm.collective_rpc("start_placing")
    before, first, started = counters(llm), llm.request_counter.counter, time.perf_counter()
    outputs, steps = generate(llm, batch, prompts)
    seconds, after = time.perf_counter() - started, counters(llm)
    return {
        "prompts": prompts,
        "prompt_lengths": [len(output.prompt_token_ids or ()) for output in outputs],
        "steps": steps,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [logprobs_of(output.outputs[0].logprobs) for output in outputs],
        "finish": [output.outputs[0].finish_reason for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "histograms": [statistics_of(output) for output in outputs],
        "seconds": seconds,
        "counters": {name: difference(value, before.get(name)) for name, value in after.items()},
        "all_counters": after,
        "states": llm.collective_rpc("take_states")[0] if batch["states"] else None,
        "answers": [whole_answer(output) for output in outputs] if batch["whole"] else [],
        "refused": refusals(llm, batch, prompts[0]) if batch["refused"] else {},
        **taken_drafts(llm, None if batch["states"] else kind, first, len(prompts)),
        **facts(llm, bool(kind)),
    }


def facts(llm: Any, drafts: bool) -> dict[str, Any]:
    """Of the engine, as it is now."""
    return {
        "oracle_steps": llm.collective_rpc("take_steps")[0],
        "state_blocks": llm.collective_rpc("state_blocks")[0],
        "workers": llm.collective_rpc("identity") if drafts else [],
    }


def serve(engine: dict[str, Any], earlier: dict[str, Any], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`patch`: of this process, in which the worker lives."""
    use = importlib.import_module(engine["use"]) if engine["use"] else None
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or engine["kernels"] is not None:
        from tests.support import triton_on_cpu  # which imports the package

        if interpreted:
            triton_on_cpu.take_masks_of_scalars(patch.setattr)
        if engine["kernels"] is not None:
            triton_on_cpu.use(engine["kernels"], patch.setattr)
    if engine["broken_at_start"] is not None:
        breakage.apply(engine["broken_at_start"], patch.setattr)
    llm = build(engine, "tests.support.placed.Placed", engine["options"])
    try:
        if engine["broken"] is not None:
            breakage.apply(engine["broken"], patch.setattr)
        if use is not None:
            return use.serve(llm, engine["job"], earlier)
        results: dict[str, Any] = {}
        for batch in engine["batches"]:
            if batch["oracle"] is not None:
                ask_oracle(llm, engine, batch["oracle"], earlier)
            kind = engine["drafts"] if engine["speculative"] is not None else None
            results[batch["name"]] = run_batch(llm, batch, results, kind)
        return results
    finally:
        close(llm)


def run(engines: list[dict[str, Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for engine in engines:
        print(f"=== {engine['name']}", flush=True)
        try:
            with pytest.MonkeyPatch.context() as patch:
                results[engine["name"]] = serve(engine, results, patch)
        except Exception as error:  # noqa: BLE001 - the next engine must have its turn
            results[engine["name"]] = {
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc(),
            }
        keep_kernels()
    return results
