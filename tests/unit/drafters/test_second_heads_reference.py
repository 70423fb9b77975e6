"""The references of DFlash2 and DSpark against vLLM's own modules, along a greedy draft."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.drafting import BOUND, MASK_TOKEN, ROWS, STEPS, Probe, load
from tests.support.drafts import VLLMS, Draft, inspect, valid_draft
from tests.support.engine import has_gpu
from tests.support.triton_on_cpu import norm_each_layers_keys
from tests.unit.measure.reference.layers import tiny_target
from vllm_eagle_ext.measure.reference.published import load_reference

pytestmark = [
    pytest.mark.skipif(has_gpu(), reason="builds vLLM's layers on its CPU platform"),
    pytest.mark.usefixtures("single_process_group"),
]
Choices = tuple[torch.Tensor, torch.Tensor]  # scores [STEPS, C], target ids [STEPS, C]


@pytest.fixture(autouse=True)
def right_norms(monkeypatch):
    norm_each_layers_keys(monkeypatch.setattr)


@torch.inference_mode()
def of_vllm(
    drafter: Any, family: str, samples_anchor: bool, states: torch.Tensor, probe: Probe
) -> Choices:
    context = drafter.combine_hidden_states(states)
    drafter.precompute_and_store_context_kv(context, torch.arange(ROWS), torch.arange(ROWS))
    masks = STEPS - samples_anchor
    block = torch.cat([probe.tokens[:1], torch.full((masks,), MASK_TOKEN)])
    hidden = drafter(block, torch.arange(ROWS, ROWS + len(block)))[-STEPS:]
    walk = _dflash2_walk if family == "dflash2" else _dspark_walk
    return walk(drafter, hidden, probe.tokens[:1])


def _dflash2_walk(drafter: Any, hidden: torch.Tensor, anchor: torch.Tensor) -> Choices:
    ids, unary = drafter.compute_candidates(hidden)
    selector = drafter.model.candidate_selector
    scores = selector(ids[None], unary[None], hidden[None], anchor)[0]  # [STEPS, before, C]
    rows, before = [], 0
    for row in scores:
        rows.append(row[before])
        before = int(rows[-1].argmax())
    return torch.stack(rows), ids


def _dspark_walk(drafter: Any, hidden: torch.Tensor, anchor: torch.Tensor) -> Choices:
    base, rows, token = drafter.compute_draft_logits(hidden), [], anchor
    for row in base:
        rows.append(row + drafter.markov_bias(drafter.markov_embed(token))[0])
        token = drafter.map_draft_to_target(rows[-1].argmax()[None])
    ids = drafter.map_draft_to_target(torch.arange(base.shape[-1]))
    return torch.stack(rows), ids.expand(STEPS, -1)


@torch.inference_mode()
def of_reference(draft: Draft, folder: Any, probe: Probe) -> tuple[Choices, bool]:
    spec, target = inspect(draft, folder).spec, tiny_target()
    target.get_input_embeddings().weight.data = probe.embed_tokens
    target.get_output_embeddings().weight.data = probe.lm_head
    walk: Any = load_reference(spec, folder, target)
    states = [state[:ROWS] for state in probe.aux(spec.aux_layers.layer_ids)]
    context = walk.reference.context(states)
    return walk.reference.choices(context, int(probe.tokens[0]), STEPS), spec.samples_anchor


def drafted(choices: Choices) -> list[int]:
    scores, ids = choices
    return ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0].tolist()


@pytest.mark.parametrize("family", VLLMS)
def test_scores_and_tokens(family, tmp_path):
    draft = valid_draft(family)
    drafter, layer_ids, path, probe = load(tmp_path, draft)
    expected, samples_anchor = of_reference(draft, path, probe)
    states = torch.cat(probe.aux(layer_ids), dim=-1)[:ROWS]
    states = states.to(drafter.model.embed_tokens.weight.dtype)
    found = of_vllm(drafter, family, samples_anchor, states, probe)
    assert (found[1] == expected[1]).all()
    assert (found[0] - expected[0]).abs().max() < BOUND * expected[0].abs().max()
    assert drafted(found) == drafted(expected)


# Tensor -> whether it is one of the second head's, which a reference without it would not need.
HEADS = {
    "dflash2": (
        "attention_conv.base_kernel",
        "mlp_conv.kernel_projection",
        "predecessor",
        "hidden_proj",
    ),
    "dspark": ("markov_w1", "markov_w2"),
    "dspark-speculators": ("markov_w1", "markov_w2"),
}


@pytest.mark.parametrize(("family", "part"), [(f, part) for f, parts in HEADS.items() for part in parts])
def test_the_second_head_is_computed_with(family, part, tmp_path):
    """Negative control: the reference of a draft in which a tensor of it is another one."""
    draft, changed = valid_draft(family), valid_draft(family)
    names = [name for name in draft.tensors if part in name]
    for name in names:
        changed.tensors[name] = changed.tensors[name].flip(-1)
    probe = load(tmp_path / "valid", draft)[-1]
    (scores, _), _ = of_reference(draft, tmp_path / "valid" / "draft", probe)
    load(tmp_path / "changed", changed)
    (others, _), _ = of_reference(changed, tmp_path / "changed" / "draft", probe)
    assert names
    assert (scores - others).abs().max() > 10 * BOUND
