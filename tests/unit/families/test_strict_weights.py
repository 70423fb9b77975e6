"""What only the load of a draft can see: large tensors are not read before; .bin files not at all."""

from __future__ import annotations

import pytest
import torch

from tests.support.drafter import construct
from tests.support.drafting import resolve_draft
from tests.support.drafts import valid_draft
from vllm_eagle_ext.errors import UnsupportedDraftError


@pytest.fixture
def drafter(tmp_path):
    return construct(resolve_draft(tmp_path, valid_draft("native"))[0], torch.float32)


def load(drafter, change=lambda tensors: None):
    tensors = valid_draft("native").tensors
    change(tensors)
    drafter.load_weights(iter(tensors.items()))


def entry(value):
    def change(tensors):
        tensors["midlayer.mlp.up_proj.weight"][3, 5] = value

    return change


def taller(tensors):
    name = "midlayer.self_attn.q_proj.weight"
    tensors[name] = torch.cat([tensors[name]] * 2)


def missing(tensors):
    del tensors["midlayer.self_attn.k_proj.weight"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((entry(float(value)), r"gate_up_proj\.weight") for value in ("nan", "inf", "-inf")),
        (missing, "without .*k_proj"),
        (lambda tensors: tensors.update(extra=torch.ones(2)), "tensor extra"),
        (taller, r"shape of .*q_proj"),
        (lambda tensors: tensors["d2t"].fill_(-1), "d2t"),
    ],
    ids=["nan", "inf", "-inf", "missing", "unexpected", "taller", "no map"],
)
def test_refused(drafter, change, words):
    with pytest.raises(UnsupportedDraftError, match=words):
        load(drafter, change)


def test_embeddings_that_the_target_shares_are_not_written_to(drafter):
    """A host would pay for rows of the whole vocabulary that nothing reads."""
    embeddings = drafter.model.embed_tokens.weight.data.fill_(7.0)
    load(drafter)
    assert (embeddings == 7).all()


def test_a_part_that_never_arrives_is_seen_without_the_list(drafter):
    """By the parameters that vLLM has built."""
    drafter.loading_plan.required.pop("layers.0.self_attn.k_proj.weight")
    with pytest.raises(UnsupportedDraftError, match="without .*k_proj"):
        load(drafter, missing)


def test_an_update_may_bring_some_tensors_only(drafter):
    load(drafter)
    drafter.load_weights(iter([("norm.weight", torch.full((64,), 2.0))]))
    assert (drafter.model.norm.weight == 2).all()
