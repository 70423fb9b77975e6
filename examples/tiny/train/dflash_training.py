"""Training of a DFlash draft on the target's own text, and its acceptance on held-out prompts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rich.progress import Progress
from transformers import PreTrainedModel

from .dflash import DFlashModel, DFlashShape
from .draft_training import observe, shares_of_accepted
from .optim import build_optimizers, set_learning_rate, update

BATCH_SIZE, CORPUS_ROWS = 8, 1  # sequences of a step, and how many of them the target did not write
ANCHORS = 32  # blocks per sequence
ROW_DECAY = 4.0  # row j weighs exp(-(j - 1) / ROW_DECAY): a draft is cut at its first wrong token


def record_states(
    target: PreTrainedModel, ids: torch.Tensor, layer_ids: tuple[int, ...], progress: Progress
) -> torch.Tensor:
    """ids [N, S] -> the states that a draft reads, bf16 [N, S, aux layers * H]."""
    task = progress.add_task("target's states", total=ids.shape[0])
    states = []
    for batch in ids.split(16):
        aux = observe(target, batch, layer_ids).aux
        states.append(torch.cat(aux, dim=-1).bfloat16())
        progress.update(task, advance=batch.shape[0])
    return torch.cat(states)


def block_logits(
    draft: DFlashModel,
    target: PreTrainedModel,
    ids: torch.Tensor,  # [B, S]
    states: torch.Tensor,  # [B, S, ids * H]
    starts: torch.Tensor,  # [B, A]
) -> torch.Tensor:  # [B, A, R - 1, V]
    table = target.get_input_embeddings().weight.detach()
    with torch.autocast("cpu", torch.bfloat16):
        anchors = table[ids.gather(1, starts)].float()
        mask = table[draft.shape.mask_token_id].float()
        hidden = draft(states, anchors, mask, starts)
        return F.linear(hidden, target.get_output_embeddings().weight.detach())


def following(ids: torch.Tensor, starts: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` tokens after each anchor. ids [B, S], starts [B, A] -> [B, A, count]."""
    places = starts[..., None] + 1 + torch.arange(count)
    return ids.gather(1, places.flatten(1)).view_as(places)


def block_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy. logits [B, A, K, V], wanted [B, A, K]."""
    losses = F.cross_entropy(logits.float().flatten(0, 2), wanted.flatten(), reduction="none")
    weight = torch.exp(-torch.arange(wanted.shape[-1]) / ROW_DECAY)
    return (losses.view_as(wanted).mean((0, 1)) * weight).sum() / weight.sum()


def train_dflash(
    target: PreTrainedModel,
    shape: DFlashShape,
    own_text: torch.Tensor,  # int64 [rows, S], prompts and what the target wrote
    corpus: torch.Tensor,  # int64 [corpus rows, S]
    *,
    prompt_length: int,
    steps: int,
    seed: int,
    progress: Progress,
) -> tuple[DFlashModel, float]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.cat([own_text, corpus])
    states = record_states(target, ids, shape.layer_ids, progress)
    # In own text, only what the target wrote is what it will write when it is served.
    first = torch.tensor([prompt_length] * len(own_text) + [prompt_length // 4] * len(corpus))
    draft = DFlashModel(shape).train()
    optimizers = build_optimizers(draft)
    task = progress.add_task("dflash", total=steps)
    losses: list[float] = []
    for step in range(steps):
        rows = sample_rows(len(own_text), len(corpus), generator)
        span = ids.shape[1] - shape.block_size + 1 - first[rows]
        random = torch.rand(len(rows), ANCHORS, generator=generator)
        starts = first[rows, None] + (random * span[:, None]).long()
        set_learning_rate(optimizers, step, steps)
        logits = block_logits(draft, target, ids[rows], states[rows], starts)
        loss = block_loss(logits, following(ids[rows], starts, shape.block_size - 1))
        update(draft, loss, optimizers)
        losses.append(loss.item())
        mean = sum(losses[-100:]) / len(losses[-100:])
        progress.update(task, advance=1, description=f"dflash loss {mean:.3f}")
    return draft.eval(), mean


def sample_rows(own: int, corpus: int, generator: torch.Generator) -> torch.Tensor:
    """Indices into own rows followed by corpus rows, [BATCH_SIZE]."""
    return torch.cat(
        [
            torch.randint(0, own, (BATCH_SIZE - CORPUS_ROWS,), generator=generator),
            own + torch.randint(0, corpus, (CORPUS_ROWS,), generator=generator),
        ]
    )


@torch.inference_mode()
def dflash_acceptance(
    draft: DFlashModel,
    target: PreTrainedModel,
    own_text: torch.Tensor,  # int64 [rows, S], greedy continuations of held-out prompts
    *,
    prompt_length: int,
    progress: Progress,
) -> list[float]:
    """Share of the drafts whose first i tokens the target accepts, walking each text as a server
    would: the first anchor is the first token that the target wrote."""
    k = draft.shape.block_size - 1
    states = record_states(target, own_text, draft.shape.layer_ids, progress)
    anchors = torch.arange(prompt_length, own_text.shape[1] - k)
    lengths = []
    for ids, seen in zip(own_text.split(4), states.split(4), strict=True):
        starts = anchors.expand(ids.shape[0], -1)
        guesses = [
            block_logits(draft, target, ids, seen, some).argmax(-1) for some in starts.split(32, 1)
        ]
        right = torch.cat(guesses, dim=1) == following(ids, starts, k)
        lengths.append(right.int().cumprod(-1).sum(-1))  # [B, A]
    return shares_of_accepted(torch.cat(lengths).tolist(), k)
