"""The child of `tests.support.kinds`: python -m tests.support.kinds_process JOB RESULT"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.hybrid_process import build, counters, generate_with_aborts
from tests.support.in_process import close, keep_kernels
from tests.support.kinds import COMPACT, MAX_TOKENS, REFUSED, Request, requests

ABORTED_AFTER = {"1": 2, "4": 3, "6": 5}  # the number of a request and the steps it has


def with_eos(target: Path, token: str, folder: Path) -> Path:
    """The same target, whose tokenizer names another token as the end of a text."""
    folder.mkdir()
    for file in target.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((target / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": token}))
    return folder


def sampling_params(params: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = {"temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False} | params
    if "json" in params:
        schema = params.pop("json")
        params["structured_outputs"] = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    return SamplingParams(**params)


def ask(llm: Any, prompts: list[list[int]], asked: list[Request]) -> dict[str, Any]:
    drafting = llm.llm_engine.vllm_config.speculative_config is not None
    if drafting:
        llm.collective_rpc("start_recording")
    inputs = [{"prompt_token_ids": prompts[one.prompt]} for one in asked]
    outputs = llm.generate(inputs, [sampling_params(one.params) for one in asked], use_tqdm=False)
    drafts = llm.collective_rpc("take_drafts")[0] if drafting else {}
    # Names are the number of the request, and before it the number of the text where n > 1.
    by_request: dict[str, Any] = {name.split("-")[0]: rows for name, rows in drafts.items()}
    found = {}
    for one, output in zip(asked, outputs, strict=True):
        texts = [described(completion) for completion in output.outputs]
        own = by_request.get(output.request_id.split("-")[0], [])
        found[one.name] = {"texts": texts, "drafts": own, "prompt_logprobs": prompt_logprobs(output)}
    return found


def described(completion: Any) -> dict[str, Any]:
    return {
        "tokens": list(completion.token_ids),
        "text": completion.text,
        "finish": completion.finish_reason,
        "stop": completion.stop_reason,
        "logprobs": [{str(t): e.logprob for t, e in at.items()} for at in completion.logprobs or []],
    }


def prompt_logprobs(output: Any) -> list[dict[str, float]]:
    return [{str(t): e.logprob for t, e in at.items()} for at in output.prompt_logprobs or [] if at]


def refusals(llm: Any, prompt: list[int]) -> dict[str, str]:
    from vllm.exceptions import VLLMValidationError

    said = {}
    for name, params in REFUSED.items():
        try:
            llm.generate([{"prompt_token_ids": prompt}], sampling_params(params), use_tqdm=False)
        except VLLMValidationError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def base_texts(llm: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    greedy = [Request("greedy", i, {"max_tokens": 2 * MAX_TOKENS}) for i in range(len(prompts))]
    texts = [answer["texts"][0] for answer in ask(llm, prompts, greedy).values()]
    tokenizer = llm.get_tokenizer()
    return [
        {"tokens": text["tokens"], "pieces": [tokenizer.decode([token]) for token in text["tokens"]]}
        for text in texts
    ]


def observe(llm: Any, job: dict[str, Any], asked: list[Request]) -> dict[str, Any]:
    found = {"answers": ask(llm, job["prompts"], asked)}
    seeded = [one for one in asked if one.kind == "seed"]
    if seeded:  # alone, after they were among others
        found["again"] = ask(llm, job["prompts"], seeded)
    found["refused"] = refusals(llm, job["prompts"][0])
    found["counters"] = counters(llm)
    run = {"max_tokens": MAX_TOKENS, "prompts": job["prompts"], "abort_after": ABORTED_AFTER}
    found["aborts"] = generate_with_aborts(llm, run)
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    target = with_eos(Path(job["target"]), job["eos"], Path(sys.argv[2]).with_name("target"))
    arguments = job["engine_args"] | {"structured_outputs_config": COMPACT}
    common = {"target": str(target), "engine_args": arguments, "state": None}
    llm = build(common | {"speculative": None})
    base = base_texts(llm, job["prompts"])
    asked = requests(base, job["kinds"], job["logprobs"])
    eos = llm.get_tokenizer().eos_token_id
    results: dict[str, Any] = {"eos": eos, "base": base, "plain": observe(llm, job, asked)}
    close(llm)
    texts = [prompt + text["tokens"] for prompt, text in zip(job["prompts"], base, strict=True)]
    for engine in job["engines"]:
        keep_kernels()
        llm = build(common | {"speculative": engine["speculative"]})
        if engine["right"]:
            k = engine["speculative"]["num_speculative_tokens"]
            llm.collective_rpc("set_oracle", args=(texts, engine["right"], k, 1536))
        kinds = engine["kinds"] or {one.kind for one in asked}
        results[engine["name"]] = observe(llm, job, [one for one in asked if one.kind in kinds])
        close(llm)
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
