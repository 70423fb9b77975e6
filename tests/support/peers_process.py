"""Engines one after the other, and what each drafts: `-m tests.support.peers_process JOBS RESULT`."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.support.in_process import build, close


def serve(job: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    llm = build(job, "tests.support.recorder.Recorder", job["options"])
    llm.collective_rpc("start_recording")
    params = SamplingParams(
        temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False
    )
    answers = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
    recorded = llm.collective_rpc("take_drafts")[0]
    close(llm)
    # vLLM numbers requests in the order of the prompts.
    requests = sorted(recorded, key=lambda name: int(name.split("-")[0]))
    return {
        "outputs": [list(answer.outputs[0].token_ids) for answer in answers],
        "drafts": [recorded[request] for request in requests],
    }


def main() -> None:
    results = {}
    for job in json.loads(Path(sys.argv[1]).read_text()):
        try:
            results[job["name"]] = serve(job)
        except Exception:  # noqa: BLE001 - the next draft must have its turn
            results[job["name"]] = {"error": traceback.format_exc()}
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
