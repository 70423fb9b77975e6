"""What a draft with a second head makes of a block, by vLLM's modules and by the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.drafting import MASK_TOKEN, ROWS, STEPS, Probe
from tests.support.drafts import Draft, inspect
from vllm_eagle_ext.measure.reference.published import load_reference

Choices = tuple[torch.Tensor, torch.Tensor]  # scores [STEPS, C], target ids [STEPS, C]


@torch.inference_mode()
def of_vllm(
    drafter: Any,
    family: str,
    samples_anchor: bool,
    states: torch.Tensor,
    probe: Probe,
    along: Choices | None = None,
) -> Choices:
    """Scores along the best tokens.

    Args:
        along: candidates that are scored instead, behind their best tokens.
    """
    context = drafter.combine_hidden_states(states)
    drafter.precompute_and_store_context_kv(context, torch.arange(ROWS), torch.arange(ROWS))
    masks = STEPS - samples_anchor
    block = torch.cat([probe.tokens[:1], torch.full((masks,), MASK_TOKEN)])
    hidden = drafter(block, torch.arange(ROWS, ROWS + len(block)))[-STEPS:]
    walk = _dflash2_walk if family == "dflash2" else _dspark_walk
    return walk(drafter, hidden, probe.tokens[:1], along)


def _dflash2_walk(
    drafter: Any, hidden: torch.Tensor, anchor: torch.Tensor, along: Choices | None
) -> Choices:
    ids, unary = drafter.compute_candidates(hidden)
    if along is not None:
        ids = along[1]
        unary = drafter.candidate_logits_processor(drafter.lm_head, hidden).gather(1, ids)
    selector = drafter.model.candidate_selector
    scores = selector(ids[None], unary[None], hidden[None], anchor)[0]  # [STEPS, before, C]
    rows, before = [], 0
    for step, row in enumerate(scores):
        rows.append(row[before])
        before = int((rows[-1] if along is None else along[0][step]).argmax())
    return torch.stack(rows), ids


def _dspark_walk(
    drafter: Any, hidden: torch.Tensor, anchor: torch.Tensor, along: Choices | None
) -> Choices:
    base, rows, token = drafter.compute_draft_logits(hidden), [], anchor
    for step, row in enumerate(base):
        rows.append(row + drafter.markov_bias(drafter.markov_embed(token))[0])
        best = (rows[-1] if along is None else along[0][step]).argmax()
        token = drafter.map_draft_to_target(best[None])
    ids = drafter.map_draft_to_target(torch.arange(base.shape[-1]))
    return torch.stack(rows), ids.expand(STEPS, -1)


@torch.inference_mode()
def of_reference(draft: Draft, folder: Path, target: Any, probe: Probe) -> tuple[Choices, bool]:
    """And whether the last sampled token's own row is drafted; the target gets the probe's matrices."""
    spec = inspect(draft, folder).spec
    assert spec is not None
    target.get_input_embeddings().weight.data = probe.embed_tokens
    target.get_output_embeddings().weight.data = probe.lm_head
    walk: Any = load_reference(spec, folder, target)
    states = [state[:ROWS] for state in probe.aux(spec.aux_layers.layer_ids)]
    context = walk.context(states)
    return walk.choices(context, int(probe.tokens[0]), STEPS), spec.samples_anchor


def drafted(choices: Choices) -> list[int]:
    scores, ids = choices
    return ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0].tolist()
