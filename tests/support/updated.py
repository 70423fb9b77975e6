"""Uses an engine as training does: it sleeps, its weights are loaded again, its draft gets others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.in_process import counters, logprobs_of, sampling_params
from tests.support.weight_updates import Items, bring, buckets

BUCKET = 4  # tensors
ANSWER = 32  # tokens


def target_weights(worker: Any) -> list[torch.Tensor]:
    """Those that a draft may share."""
    target = worker.model_runner.get_model()
    return [part.weight.detach().clone() for part in (target.model.embed_tokens, target.lm_head)]


def update_draft(worker: Any, parts: list[Items]) -> None:
    bring(worker.get_draft_model(), worker.vllm_config, parts)


def noise(items: Items) -> Items:
    """Other values, but for norms and vocabulary maps."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            name,
            (torch.randn(tensor.shape, generator=generator) * 0.05).to(tensor.dtype)
            if tensor.is_floating_point() and "norm" not in name
            else tensor,
        )
        for name, tensor in items
    ]


def ask(llm: Any, prompts: list[list[int]]) -> dict[str, Any]:
    before = counters(llm)
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        sampling_params({"max_tokens": ANSWER, "logprobs": 5, "detokenize": False}),
        use_tqdm=False,
    )
    after = counters(llm)
    drafts, accepted = (
        after[name] - before.get(name, 0)
        for name in ("spec_decode_num_drafts", "spec_decode_num_accepted_tokens")
    )
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [logprobs_of(output.outputs[0].logprobs) for output in outputs],
        "tau": accepted / drafts,
    }


def serve(llm: Any, job: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """What is answered after each step, and whether the target kept its weights."""
    own = list(load_file(Path(job["draft"]) / "model.safetensors").items())
    (first,) = llm.collective_rpc(target_weights)
    answers: dict[str, Any] = {"start": ask(llm, job["prompts"])}
    steps: dict[str, Any] = {
        "noise": partial(llm.collective_rpc, update_draft, args=([noise(own)],)),
        "whole": partial(llm.collective_rpc, update_draft, args=([own],)),
        "noise in buckets": partial(
            llm.collective_rpc, update_draft, args=(buckets(noise(own), BUCKET),)
        ),
        "buckets": partial(llm.collective_rpc, update_draft, args=(buckets(own, BUCKET),)),
        "sleep 1": partial(_sleep, llm, 1),
        "sleep 2": partial(_sleep, llm, 2),
        "reload": partial(llm.collective_rpc, "reload_weights"),
    }
    for name, take in steps.items():
        take()
        answers[name] = ask(llm, job["prompts"])
        (now,) = llm.collective_rpc(target_weights)
        answers[name]["target_kept"] = all(map(torch.equal, now, first))
    return answers


def _sleep(llm: Any, level: int) -> None:
    """vLLM's CPU worker ignores both; the engine around it does not. Level 2 wants the weights again."""
    llm.sleep(level=level)
    llm.wake_up()
    if level == 2:
        llm.collective_rpc("reload_weights")
