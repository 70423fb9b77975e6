"""Which tensors a draft needs, and how they may be called."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.drafts import FAMILIES, inspect, valid_draft

# May be absent: shared with the target, or not read.
_OPTIONAL = {"embed_tokens.weight", "t2d"}


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, id=f"{family}-{name}")
        for family in FAMILIES
        for name in valid_draft(family).tensors
        if name not in _OPTIONAL and (family, name) != ("mla", "lm_head.weight")
    ],
)
def test_no_tensor_can_be_missing(tmp_path, family, name):
    draft = valid_draft(family)
    del draft.tensors[name]
    errors = inspect(draft, tmp_path).errors
    if (family, name) == ("gated", "midlayer.self_attn.q_proj.weight"):  # the gate goes with it
        errors = [error for error in errors if error.rule != "gate_matches_its_flag"]
    (error,) = errors
    module = re.sub(r"\.weight(_scale)?$", "", name).replace("midlayer.", "layers.0.")
    assert module.split(".")[-1 if "layers" in module else 0] in str(error.problem)


@pytest.mark.parametrize("name", ["midlayer.self_attn.rotary_emb.inv_freq", "rotary_emb.cos_cached"])
def test_computed_constants_are_ignored(tmp_path, name):
    draft = valid_draft("native")
    draft.tensors[name] = torch.ones(16)
    assert inspect(draft, tmp_path).findings == ()
