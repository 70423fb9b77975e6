"""Draws samples from an engine on a target of few tokens: `use` of `tests.support.batches.Engine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.support.in_process import counters
from tests.support.sampling import AT_A_TIME, LENGTH, PROMPT


def every_draft_accepted(sampler: Any) -> tuple[str, Callable[..., Any]]:
    return "generate_uniform_probs", lambda count, *_: torch.zeros(count, dtype=torch.float64)


def residual_ignored(sampler: Any) -> tuple[str, Callable[..., Any]]:
    """After a rejection the target's distribution instead of what the draft's leaves of it."""
    original = sampler.sample_recovered_tokens

    def recovered(k: Any, counts: Any, ends: Any, ids: Any, of_draft: Any, of_target: Any, *rest: Any):
        return original(k, counts, ends, ids, torch.zeros_like(of_target), of_target, *rest)

    return "sample_recovered_tokens", recovered


BROKEN = {"every draft accepted": every_draft_accepted, "residual ignored": residual_ignored}


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
    return [list(text.token_ids) for output in outputs for text in output.outputs]


def serve(llm: Any, job: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    from vllm.v1.sample import rejection_sampler

    samples = {}
    for draw in job["draws"]:
        with pytest.MonkeyPatch.context() as patch:  # the worker lives in this process
            if draw["broken"] is not None:
                patch.setattr(rejection_sampler, *BROKEN[draw["broken"]](rejection_sampler))
            seeds = range(1, 1 + job["seeds"])
            samples[draw["name"]] = [sample(llm, draw, seed, job["size"]) for seed in seeds]
    seen = counters(llm)
    return {
        "samples": samples,
        "drafts": seen.get("spec_decode_num_drafts", 0),
        "drafted": seen.get("spec_decode_num_draft_tokens", 0),
        "accepted": seen.get("spec_decode_num_accepted_tokens_per_pos", []),
    }
