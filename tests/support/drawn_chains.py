"""Texts of a Markov chain, drawn with sampled drafts of which as many are verified as a rule of K says.

Target and draft are tables of chances; drafting is their plain sampling. What judges the drafts is
vLLM's own rejection sampler, whose kernels for a CPU are put in place once per process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

VOCAB, LENGTH, K = 5, 4, 3
# Drafted tokens [N, K] of a step and the chance of each -> how many of each draft are kept, [N].
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_load(tokens: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """As vLLM's schedule by the number of requests, 0 among its values."""
    count = len(tokens)
    return torch.full((count,), K if count > 8_000 else 1 if count > 3_000 else 0)


def by_the_drawn_token(tokens: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Keep what is in front of the first unlikely token: a likely one gets more than its chance."""
    return (drawn >= 0.5).long().cumprod(1).sum(1)


RULES: dict[str, Rule] = {
    "K fixed": lambda tokens, drawn: torch.full((len(tokens),), K),
    "K by load": by_load,
    "K by the drawn token": by_the_drawn_token,
}


def tables(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Chances of the next token by the last one, [VOCAB, VOCAB] each: the target's, the draft's."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(VOCAB, VOCAB, generator=generator) for _ in range(2))
    return (1.2 * first).softmax(1), (1.2 * first + 0.8 * second).softmax(1)


def chances_of_texts(target: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Of each text behind token 0, by the target's table."""
    listed = list(itertools.product(range(VOCAB), repeat=LENGTH))
    rows = torch.tensor([(0, *text) for text in listed])
    each = target.double()[rows[:, :-1], rows[:, 1:]].prod(1)
    return dict(zip(listed, each.tolist(), strict=True))


def draw(chances: torch.Tensor) -> torch.Tensor:
    """[N, VOCAB] -> [N]"""
    return chances.multinomial(1).squeeze(1)


def draft(last: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K tokens behind each last one, [N, K], and what they were drawn from, [N, K, VOCAB]."""
    tokens, chances = [], []
    for _ in range(K):
        chances.append(table[last])
        last = draw(chances[-1])
        tokens.append(last)
    return torch.stack(tokens, 1), torch.stack(chances, 1)


def verify(
    tokens: torch.Tensor,
    chances: torch.Tensor,
    of_target: torch.Tensor,
    kept: torch.Tensor,
    bonus: torch.Tensor,
) -> torch.Tensor:
    """Hand what is kept of the drafts to vLLM's rejection sampler: [N, 1 + K], -1 behind the outcome."""
    from vllm.v1.sample.rejection_sampler import rejection_sample

    ids = torch.full((len(kept), 1 + K), -1)
    most = int(kept.max())
    if most == 0:
        ids[:, 0] = bonus
        return ids
    rows = torch.arange(K) < kept[:, None]
    ids[:, : 1 + most] = rejection_sample(
        tokens[rows].int(),
        kept.tolist(),
        most,
        kept.cumsum(0).int(),
        chances[rows].contiguous(),
        of_target[rows].log(),
        bonus[:, None].int(),
        _sampling(len(kept)),
    ).long()
    return ids


def _sampling(count: int) -> Any:
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    nothing = torch.zeros(count)
    return SamplingMetadata(
        temperature=torch.ones(count),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=nothing,
        presence_penalties=nothing,
        repetition_penalties=nothing,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def sample(rule: Rule, size: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Draw texts of LENGTH tokens behind token 0.

    Returns:
        The texts, and the numbers of tokens that were kept of a draft, each once.
    """
    target, table = tables()
    texts = torch.zeros(size, 1 + LENGTH + 1 + K, dtype=torch.long)
    ends, seen = torch.zeros(size, dtype=torch.long), set()
    while len(going := (ends < LENGTH).nonzero().squeeze(1)):
        last = texts[going, ends[going]]
        tokens, chances = draft(last, table)
        of_target = target[torch.cat([last[:, None], tokens], 1)]  # [N, 1 + K, VOCAB]
        kept = rule(tokens, chances.gather(2, tokens[..., None]).squeeze(2))
        bonus = draw(of_target[torch.arange(len(going)), kept])
        ids = verify(tokens, chances, of_target[:, :K], kept, bonus)
        places = 1 + ends[going][:, None] + torch.arange(1 + K)
        texts[going[:, None], places] = ids.clamp(min=0)
        ends[going] += (ids >= 0).sum(1)
        seen |= set(kept.tolist())
    return [tuple(row) for row in texts[:, 1 : 1 + LENGTH].tolist()], sorted(seen)


def run(job: dict[str, int]) -> dict[str, Any]:
    from vllm.platforms import current_platform

    results = {}
    current_platform.register_triton_kernel_overrides()
    for name, rule in RULES.items():
        torch.manual_seed(job["seed"])
        texts, kept = sample(rule, job["size"])
        results[name] = {"texts": texts, "kept": kept}
    return results
