"""Draws samples from engines on a target of few tokens, one engine after the other in one process.

python -m tests.support.sampling_process JOBS RESULT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.families_process import write_random_target
from tests.support.hybrid_process import counters
from tests.support.in_process import close, keep_kernels
from tests.support.sampling import LENGTH, PROMPT, VOCAB, K, write_small_draft

AT_A_TIME = 500


def write_small_target(folder: Path) -> Path:
    """Neither flat nor certain of a token."""
    write_random_target(folder, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def every_draft_accepted(sampler: Any) -> tuple[str, Callable[..., Any]]:
    return "generate_uniform_probs", lambda count, *_: torch.zeros(count, dtype=torch.float64)


def residual_ignored(sampler: Any) -> tuple[str, Callable[..., Any]]:
    """After a rejection the target's distribution instead of what the draft's leaves of it."""
    original = sampler.sample_recovered_tokens

    def recovered(k: Any, counts: Any, ends: Any, ids: Any, of_draft: Any, of_target: Any, *rest: Any):
        return original(k, counts, ends, ids, torch.zeros_like(of_target), of_target, *rest)

    return "sample_recovered_tokens", recovered


BROKEN = {"every draft accepted": every_draft_accepted, "residual ignored": residual_ignored}


def build(target: Path, draft: Path | None, engine: dict[str, Any]) -> Any:
    from vllm import LLM

    speculative = None
    if draft is not None:
        method = "dflash" if engine["draft"].startswith("dflash") else "eagle3"
        speculative = {"method": method, "model": str(draft), "num_speculative_tokens": K}
        speculative["draft_sample_method"] = engine["how"]
        if engine["schedule"]:
            speculative["num_speculative_tokens_per_batch_size"] = engine["schedule"]
    return LLM(
        str(target),
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=AT_A_TIME,
        gpu_memory_utilization=0.2,
        disable_log_stats=False,
        speculative_config=speculative,
    )


def sample(llm: Any, draw: dict[str, Any], seed: int, size: int) -> list[list[int]]:
    from vllm import SamplingParams

    torch.manual_seed(seed)
    numpy.random.seed(seed)
    params = SamplingParams(
        temperature=draw["temperature"],
        top_k=draw["top_k"],
        top_p=draw["top_p"],
        max_tokens=LENGTH,
        ignore_eos=True,
        detokenize=False,
        n=min(AT_A_TIME, size),
    )
    prompts = [{"prompt_token_ids": list(PROMPT)}] * (size // params.n)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(one.token_ids) for output in outputs for one in output.outputs]


def run(target: Path, draft: Path | None, job: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    from vllm.v1.sample import rejection_sampler

    llm, samples = build(target, draft, engine), {}
    for draw in engine["draws"]:
        with pytest.MonkeyPatch.context() as patch:  # the worker lives in this process
            if draw["broken"] is not None:
                patch.setattr(rejection_sampler, *BROKEN[draw["broken"]](rejection_sampler))
            seeds = range(1, 1 + job["seeds"])
            samples[draw["name"]] = [sample(llm, draw, seed, job["size"]) for seed in seeds]
    seen = counters(llm)
    close(llm)
    return {
        "samples": samples,
        "drafts": seen.get("spec_decode_num_drafts", 0),
        "drafted": seen.get("spec_decode_num_draft_tokens", 0),
        "accepted": seen.get("spec_decode_num_accepted_tokens_per_pos", []),
    }


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    folder, results = Path(job["folder"]), {}
    target = write_small_target(folder / "target")
    for engine in job["engines"]:
        draft = write_small_draft(folder, engine["draft"]) if engine["draft"] else None
        results[engine["name"]] = run(target, draft, job, engine)
        keep_kernels()
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
