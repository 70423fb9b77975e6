"""One vLLM engine in a process of its own: JSON commands on stdin, JSON answers on stdout.

{"decode": "text", "max_tokens": 128}  -> {"tokens": [...], "seconds": 0.21}
{"gap": "text", "tokens": [...]}       -> {"gap": 0.03}: how far the target's first choice after
                                          these tokens lies above its second, in log-probability
{"counters": true}                     -> {"drafts": 812, "accepted": [600, ...]}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def build(arguments: dict[str, Any]) -> Any:
    from vllm import LLM

    return LLM(
        max_model_len=1024,
        max_num_seqs=8,
        gpu_memory_utilization=0.3,
        disable_log_stats=False,
        enable_prefix_caching=False,
        **arguments,
    )


def decode(llm: Any, text: str, max_tokens: int) -> dict[str, Any]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    started = time.perf_counter()
    answer = llm.generate([text], params, use_tqdm=False)[0]
    return {
        "tokens": list(answer.outputs[0].token_ids),
        "seconds": time.perf_counter() - started,
    }


def gap(llm: Any, text: str, tokens: list[int]) -> dict[str, float]:
    from vllm import SamplingParams

    ids = llm.get_tokenizer()(text)["input_ids"] + tokens
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2, ignore_eos=True)
    answer = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0]
    first, second = sorted(
        (entry.logprob for entry in answer.outputs[0].logprobs[0].values()), reverse=True
    )[:2]
    return {"gap": first - second}


def counters(llm: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"drafts": 0, "accepted": []}
    for metric in llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            values["drafts"] = int(metric.value)
        elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            values["accepted"] = [int(value) for value in metric.values]
    return values


def answer(llm: Any, command: dict[str, Any]) -> dict[str, Any]:
    if "decode" in command:
        return decode(llm, command["decode"], command["max_tokens"])
    if "gap" in command:
        return gap(llm, command["gap"], command["tokens"])
    return counters(llm)


def main() -> None:
    # vLLM and its children print to descriptor 1; the answers keep the real one for themselves.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    llm = build(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line))), file=replies)


if __name__ == "__main__":
    main()
