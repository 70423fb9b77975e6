"""Runs engines one after the other in one process, and batches on each.

python -m tests.support.batches_process JOBS RESULT, where JOBS is a JSON list of `Engine`s.
"""

from __future__ import annotations

import json
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

from tests.support import joining
from tests.support.hybrid_process import counters, logprobs_of
from tests.support.in_process import build, close, keep_kernels
from tests.support.kinds_process import sampling_params


def prompts_of(batch: dict[str, Any], earlier: dict[str, Any]) -> list[list[int]]:
    if batch["follows"] is None:
        return batch["prompts"]
    before = earlier[batch["follows"]]
    texts = zip(before["prompts"], before["tokens"], strict=True)
    return [prompt + own + batch["then"] for prompt, own in texts]


def generate(
    llm: Any, batch: dict[str, Any], prompts: list[list[int]]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Answers, and the steps of requests that join at steps of their own."""
    lengths = batch["max_tokens"]
    lengths = lengths if isinstance(lengths, list) else [lengths] * len(prompts)
    common = {"detokenize": False, "logprobs": batch["logprobs"]}
    params = [
        sampling_params(common | {"max_tokens": length} | own)
        for length, own in zip(lengths, batch["asked"] or [{}] * len(prompts), strict=True)
    ]
    if batch["joins"]:
        return joining.generate(llm, prompts, params, batch["joins"])
    adapters = adapters_of(batch["lora"])
    texts = [{"prompt_token_ids": prompt} for prompt in prompts]
    width = batch["concurrency"] or len(prompts)
    outputs: list[Any] = []
    for start in range(0, len(prompts), width):
        part = slice(start, start + width)
        lora = adapters[part] or None
        outputs += llm.generate(texts[part], params[part], use_tqdm=False, lora_request=lora)
    return outputs, []


def adapters_of(folders: list[str | None]) -> list[Any]:
    from vllm.lora.request import LoRARequest

    return [
        folder and LoRARequest(folder, zlib.crc32(folder.encode()) >> 1, folder) for folder in folders
    ]


def difference(after: Any, before: Any) -> Any:
    if isinstance(after, list):
        before = before or [0] * len(after)
        return [a - b for a, b in zip(after, before, strict=True)]
    return after - (before or 0)


def in_order(by_request: dict[str, Any], first: int, count: int, absent: Any) -> list[Any]:
    """vLLM numbers requests in the order of the prompts, from `first` on."""
    by_number = {int(name.split("-")[0]): value for name, value in by_request.items()}
    return [by_number.get(number, absent) for number in range(first, first + count)]


def run_batch(llm: Any, batch: dict[str, Any], earlier: dict[str, Any], drafts: bool) -> dict[str, Any]:
    if batch["cold"]:
        assert llm.reset_prefix_cache()
    prompts = prompts_of(batch, earlier)
    if drafts:
        llm.collective_rpc("start_placing")
    before, first = counters(llm), llm.request_counter.counter
    outputs, steps = generate(llm, batch, prompts)
    after = counters(llm)
    placed, rows = [llm.collective_rpc(name) if drafts else [] for name in ("take_placed", "take_rows")]
    return {
        "prompts": prompts,
        "steps": steps,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": logprobs_of(outputs),
        "finish": [output.outputs[0].finish_reason for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "counters": {name: difference(value, before.get(name)) for name, value in after.items()},
        "placed": in_order(placed[0], first, len(prompts), {}) if drafts else [],
        "rows": in_order(rows[0], first, len(prompts), 0) if drafts else [],
    }


def serve(engine: dict[str, Any]) -> dict[str, Any]:
    llm = build(engine, "tests.support.placed.Placed", engine["options"])
    results: dict[str, Any] = {}
    for batch in engine["batches"]:
        drafts = engine["speculative"] is not None
        results[batch["name"]] = run_batch(llm, batch, results, drafts)
    close(llm)
    return results


def main() -> None:
    results: dict[str, Any] = {}
    for engine in json.loads(Path(sys.argv[1]).read_text()):
        print(f"=== {engine['name']}", flush=True)
        try:
            results[engine["name"]] = serve(engine)
        except Exception as error:  # noqa: BLE001 - the next engine must have its turn
            results[engine["name"]] = {
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc(),
            }
        keep_kernels()
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
