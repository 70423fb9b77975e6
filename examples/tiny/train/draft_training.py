"""Training of a draft on the target's own text, and its acceptance on held-out prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from rich.progress import Progress
from transformers import LlamaForCausalLM, PreTrainedModel

from .corpus import sample_windows
from .draft import DraftModel, DraftShape
from .optim import build_optimizers, set_learning_rate, update

UNROLL = 5  # chain steps in training; K = 4 uses the first four
STEP_DECAY = 0.85
BATCH_SIZE = 12
# The per-layer norms start equal; at this rate they learn to weigh the aux layers apart.
NORM_LEARNING_RATE = 0.02
CORPUS_ROWS = 3  # of each batch; the rest is text that the target wrote itself


@dataclass(frozen=True)
class TargetView:
    """What a draft sees of the target for one batch of windows."""

    aux: list[torch.Tensor]  # per aux layer [B, S, H]
    embeddings: torch.Tensor  # [B, S, H]
    logits: torch.Tensor  # [B, S, V]


@torch.no_grad()  # not inference_mode: the draft saves these tensors for its backward pass
def observe(model: PreTrainedModel, ids: torch.Tensor, layer_ids: tuple[int, ...]) -> TargetView:
    """The input of layer i is the residual stream that Hugging Face calls hidden_states[i]; its last
    entry is already final-normed, so id N is refused here."""
    if max(layer_ids) >= model.config.num_hidden_layers:
        raise ValueError(f"aux layers {layer_ids} must be inputs of the target's layers")
    output = model(ids, use_cache=False, output_hidden_states=True)
    states = [output.hidden_states[b].float() for b in layer_ids]
    return TargetView(states, output.hidden_states[0].float(), output.logits.float())


def most_frequent_ids(stream: torch.Tensor, vocab_size: int, count: int) -> torch.Tensor:
    """The `count` most frequent ids, ascending. int64 [count]."""
    frequency = torch.bincount(stream.flatten(), minlength=vocab_size)
    return frequency.argsort(descending=True, stable=True)[:count].sort().values


def chain_loss(logits: list[torch.Tensor], view: TargetView, kept: torch.Tensor) -> torch.Tensor:
    """Cross-entropy against the target's distribution over the kept ids, decayed along the chain.

    Half of the weight stands on the target's first choice, because greedy drafting is what is
    measured; rows whose first choice is outside the draft vocabulary do not count.
    """
    total = logits[0].new_zeros(())
    for step, row in enumerate(logits):
        n = row.shape[1]
        wanted = view.logits[:, step + 1 : step + 1 + n]
        inside = wanted[..., kept]
        first = inside.argmax(-1)
        covered = inside.amax(-1) >= wanted.amax(-1)
        log_probs = row.float().log_softmax(-1)
        soft = -(inside.softmax(-1) * log_probs).sum(-1)
        hard = -log_probs.gather(-1, first[..., None])[..., 0]
        total = total + STEP_DECAY**step * (0.5 * (soft + hard))[covered].mean()
    return total


def train_draft(
    target: LlamaForCausalLM,
    shape: DraftShape,
    kept: torch.Tensor,  # int64 [Vd], ids of the draft vocabulary, ascending
    own_text: torch.Tensor,  # int64 [rows, S], written by the target
    corpus: torch.Tensor,  # int64 [tokens]
    *,
    name: str,
    steps: int,
    seed: int,
    progress: Progress,
) -> tuple[DraftModel, float]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    draft = DraftModel(shape).train()
    if shape.draft_vocab_size == shape.vocab_size:
        draft.lm_head.weight.data.copy_(target.lm_head.weight)
    else:
        draft.lm_head.weight.data.copy_(target.lm_head.weight[kept])
    optimizers = build_optimizers(draft, norm_learning_rate=NORM_LEARNING_RATE)
    task = progress.add_task(name, total=steps)
    losses: list[float] = []
    length = own_text.shape[1]
    for step in range(steps):
        rows = torch.randint(0, own_text.shape[0], (BATCH_SIZE - CORPUS_ROWS,), generator=generator)
        ids = torch.cat([own_text[rows], sample_windows(corpus, CORPUS_ROWS, length, generator)])
        view = observe(target, ids, shape.layer_ids)
        n = length - UNROLL
        set_learning_rate(optimizers, step, steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = draft.unroll([state[:, :n] for state in view.aux], view.embeddings, UNROLL)
        loss = chain_loss(logits, view, kept)
        update(draft, loss, optimizers)
        losses.append(loss.item())
        mean = sum(losses[-100:]) / len(losses[-100:])
        progress.update(task, advance=1, description=f"{name} loss {mean:.3f}")
    return draft.eval(), mean


@torch.inference_mode()
def acceptance_per_position(
    draft: DraftModel,
    target: LlamaForCausalLM,
    kept: torch.Tensor,
    own_text: torch.Tensor,  # int64 [rows, S], greedy continuations of held-out prompts
    *,
    prompt_length: int,
    k: int,
) -> list[float]:
    """Share of the drafts whose first i tokens the target accepts, i = 1..k."""
    lengths = []
    for ids in own_text.split(16):
        view = observe(target, ids, draft.shape.layer_ids)
        n = ids.shape[1] - k - 1
        with torch.autocast("cpu", torch.bfloat16):
            logits = draft.unroll([state[:, :n] for state in view.aux], view.embeddings, k)
        guesses = torch.stack([kept[row.argmax(-1)] for row in logits], dim=-1)  # [B, n, k]
        wanted = torch.stack([ids[:, j + 2 : j + 2 + n] for j in range(k)], dim=-1)
        lengths.append((guesses == wanted).int().cumprod(-1).sum(-1))  # [B, n]
    return shares_of_accepted(torch.cat(lengths)[:, prompt_length - 1 :].tolist(), k)


def shares_of_accepted(lengths: Iterable[Sequence[int]], k: int) -> list[float]:
    """`lengths` has a row per text: how many tokens of the draft at each position are right. Walks the
    texts from their first position on: after a accepted tokens the next draft stands a+1 further."""
    accepted = torch.zeros(k, dtype=torch.int64)
    drafts = 0
    for row in lengths:
        start = 0
        while start < len(row):
            accepted[: row[start]] += 1
            drafts += 1
            start += row[start] + 1
    return [round(value / drafts, 4) for value in accepted.tolist()]
