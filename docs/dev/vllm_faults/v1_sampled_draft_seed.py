"""A seed does not repeat sampled drafts.

Kind: explains an observation.
Met by: requests with a seed and `draft_sample_method: probabilistic`, on the V1 runner.
Symptom: The same seed gives another text. Greedy drafts, the default, do not have it.
Cause: `v1/spec_decode/llm_base_proposer.py`, `compute_probs_and_sample_next_token` draws its noise from
  no request's generator ("TODO: Consider seeds").
Releases: 0.32 and 0.33 (run).
Workaround: None: the texts' distribution is right (docs/serving.md).
Remedy: greedy drafts, the default.
Can go when: The noise comes from the requests' generators, or the V1 runner goes.
"""

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
