"""V1 samples drafts with noise of its own, whatever seed a request has."""

from types import SimpleNamespace

import torch
from vllm.v1.spec_decode.llm_base_proposer import compute_probs_and_sample_next_token


def draft() -> list[int]:
    settings = SimpleNamespace(
        all_greedy=False,
        all_random=True,
        temperature=torch.ones(1),
        generators={0: torch.Generator().manual_seed(7)},
    )
    token, _ = compute_probs_and_sample_next_token(torch.zeros(1, 100_000), settings)
    return token.tolist()


first, second = draft(), draft()
if first == second:
    print("fault gone: a seed repeats the drafts")
    raise SystemExit(1)
print(f"fault present: one seed gives the drafts {first} and {second}")
