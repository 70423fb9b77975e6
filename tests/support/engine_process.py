"""The child of `tests.support.engine`: one LLM, its texts, drafts, states and counters as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def build_llm(run: dict[str, Any]) -> Any:
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": run["target"],
        "max_model_len": 1024,
        "enforce_eager": run["eager"],
        "gpu_memory_utilization": 0.3,
        "disable_log_stats": False,
        "seed": 0,
        "worker_extension_cls": "tests.support.recorder.Recorder",
        "enable_prefix_caching": False,  # every prompt is computed whole, so that its states are seen
        **run["engine_args"],
    }
    if run["draft"] is not None:
        arguments["speculative_config"] = {
            "method": "eagle3",
            "model": run["draft"],
            "num_speculative_tokens": run["k"],
        }
    if run["options"]:
        arguments["additional_config"] = {"eagle_ext": run["options"]}
    return LLM(**arguments)


def generate(llm: Any, run: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=run["temperature"],
        seed=run["seed"],
        max_tokens=run["max_tokens"],
        logprobs=run["logprobs"],
        ignore_eos=True,
        detokenize=False,
    )
    result: dict[str, Any] = {"outputs": [], "logprobs": [], "drafts": []}
    prompts, width = run["prompts"], run["concurrency"]
    for start in range(0, len(prompts), width):
        batch = [{"prompt_token_ids": ids} for ids in prompts[start : start + width]]
        if run["record_drafts"]:
            llm.collective_rpc("start_recording")
        answers = llm.generate(batch, params, use_tqdm=False)
        for answer in answers:
            completion = answer.outputs[0]
            result["outputs"].append(list(completion.token_ids))
            result["logprobs"].append(
                [
                    {str(token): entry.logprob for token, entry in position.items()}
                    for position in completion.logprobs or []
                ]
            )
        if run["record_drafts"]:
            recorded = llm.collective_rpc("take_drafts")[0]
            # Within one call vLLM numbers requests in the order of the prompts.
            for request in sorted(recorded, key=lambda name: int(name.split("-")[0])):
                result["drafts"].append(recorded[request])
    return result


def capture_states(llm: Any, prompt: list[int]) -> list[list[float]]:
    from vllm import SamplingParams

    llm.collective_rpc("start_recording")
    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return llm.collective_rpc("take_states")[0]


def read_counters(llm: Any) -> dict[str, Any]:
    counters: dict[str, Any] = {"num_drafts": 0, "accepted_per_position": []}
    for metric in llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            counters["num_drafts"] = int(metric.value)
        elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            counters["accepted_per_position"] = [int(v) for v in metric.values]
    return counters


def main() -> None:
    run = json.loads(Path(sys.argv[1]).read_text())
    llm = build_llm(run)
    states = capture_states(llm, run["state_prompt"]) if run["state_prompt"] else None
    before = read_counters(llm)
    result = generate(llm, run)
    after = read_counters(llm)
    result["states"] = states
    result["num_drafts"] = after["num_drafts"] - before["num_drafts"]
    earlier = before["accepted_per_position"] or [0] * len(after["accepted_per_position"])
    result["accepted_per_position"] = [
        now - then for now, then in zip(after["accepted_per_position"], earlier, strict=True)
    ]
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
