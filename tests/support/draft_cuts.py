"""Rules that shorten sampled drafts, and texts of a Markov chain drawn with drafts that they shorten.

A rule may know what a token was drawn from, but neither that token nor what follows from it: a draft
that is verified only where its token is a likely one gives likely tokens twice their chance.
Target and draft are tables of chances; drafting is their plain sampling. What judges the drafts is
vLLM's own rejection sampler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VOCAB, LENGTH, K = 5, 4, 3


@dataclass(frozen=True)
class Drafts:
    """Of N requests in one step."""

    tokens: torch.Tensor  # [N, K], int64
    chances: torch.Tensor  # [N, K, VOCAB], what each token was drawn from
    target: torch.Tensor | None = None  # [N, K, VOCAB], behind the same tokens
    said: torch.Tensor | None = None  # [N], tokens of the text

    @property
    def drawn(self) -> torch.Tensor:
        """The chance of each token, [N, K]."""
        return self.chances.gather(2, self.tokens[..., None]).squeeze(2)

    def all_kept(self, count: torch.Tensor | int) -> torch.Tensor:
        return torch.as_tensor(count).expand(len(self.tokens))


Rule = Callable[[Drafts], torch.Tensor]  # -> [N], how many tokens of each draft are kept


def up_to(keep: torch.Tensor) -> torch.Tensor:
    """keep: [N, K] -> how many are kept in front of the first that is not."""
    return keep.long().cumprod(1).sum(1)


def largest_product(drafts: Drafts) -> torch.Tensor:
    return drafts.chances.amax(2).cumprod(1)


def best_half(drafts: Drafts) -> torch.Tensor:
    """Of the whole batch: a row's score is never above that of the row in front of it."""
    scores = largest_product(drafts)
    return up_to(scores >= scores.median())


LOSSLESS: dict[str, Rule] = {
    "K fixed": lambda d: d.all_kept(d.tokens.shape[1]),
    "K by load": lambda d: d.all_kept(1 if len(d.tokens) > 5_000 else d.tokens.shape[1]),
    "cut by position": lambda d: d.said % (d.tokens.shape[1] + 1),
    "cut at the product of largest chances": lambda d: up_to(largest_product(d) >= 0.3),
    "best half of the batch's rows": best_half,
}
BIASED: dict[str, Rule] = {
    "cut where the drawn token is unlikely": lambda d: up_to(d.drawn >= 0.5),
    "cut at the product of drawn chances": lambda d: up_to(d.drawn.cumprod(1) >= 0.25),
    "cut where the target may reject": lambda d: up_to(
        d.target.gather(2, d.tokens[..., None]).squeeze(2) >= d.drawn
    ),
    "kept where the drawn token is the likeliest": lambda d: up_to(d.tokens == d.chances.argmax(2)),
    "all or none, by a chance behind a drawn token": lambda d: (
        (largest_product(d)[:, -1] >= 0.15) * d.tokens.shape[1]
    ),
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
    """[.., VOCAB] -> [..]"""
    return chances.flatten(0, -2).multinomial(1).view(chances.shape[:-1])


def draft(last: torch.Tensor, table: torch.Tensor, greedy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """K tokens behind each last one, [N, K], and what they were drawn from, [N, K, VOCAB]."""
    tokens, chances = [], []
    for _ in range(K):
        chances.append(table[last])
        last = chances[-1].argmax(1) if greedy else draw(chances[-1])
        tokens.append(last)
    return torch.stack(tokens, 1), torch.stack(chances, 1)


def verify(drafts: Drafts, kept: torch.Tensor, bonus: torch.Tensor, greedy: bool) -> torch.Tensor:
    """Hand what is kept of the drafts to vLLM's rejection sampler: [N, 1 + K], -1 behind the outcome."""
    from vllm.v1.sample.rejection_sampler import rejection_sample

    found = torch.full((len(kept), 1 + K), -1)
    most = int(kept.max())
    if most == 0:
        found[:, 0] = bonus
        return found
    rows = torch.arange(K) < kept[:, None]
    assert drafts.target is not None
    found[:, : 1 + most] = rejection_sample(
        drafts.tokens[rows].int(),
        kept.tolist(),
        most,
        kept.cumsum(0).int(),
        None if greedy else drafts.chances[rows].contiguous(),
        drafts.target[rows].log(),
        bonus[:, None].int(),
        _sampling(len(kept)),
    ).long()
    return found


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


def sample(rule: Rule, size: int, greedy: bool = False) -> tuple[list[tuple[int, ...]], float]:
    """Draw texts of LENGTH tokens behind token 0.

    Returns:
        The texts, and the share of drafted tokens that was kept.
    """
    target, table = tables()
    texts = torch.zeros(size, 1 + LENGTH + 1 + K, dtype=torch.long)
    ends = torch.zeros(size, dtype=torch.long)
    shares: list[torch.Tensor] = []  # per step, of each request's draft
    while len(going := (ends < LENGTH).nonzero().squeeze(1)):
        last = texts[going, ends[going]]
        tokens, chances = draft(last, table, greedy)
        before = torch.cat([last[:, None], tokens], 1)
        of_target = target[before]  # [N, 1 + K, VOCAB]
        drafts = Drafts(tokens, chances, of_target[:, :K], ends[going])
        kept = rule(drafts)
        bonus = draw(of_target[torch.arange(len(going)), kept])
        found = verify(drafts, kept, bonus, greedy)
        places = 1 + ends[going][:, None] + torch.arange(1 + K)
        texts[going[:, None], places] = found.clamp(min=0)
        ends[going] += (found >= 0).sum(1)
        shares.append(kept / K)
    return [tuple(row) for row in texts[:, 1 : 1 + LENGTH].tolist()], torch.cat(shares).mean().item()
