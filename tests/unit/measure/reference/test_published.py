"""Which checkpoints have a reference, and that it is read as the checkpoint says."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tests.support.drafts import LAYER, Draft, inspect, valid_draft
from tests.support.engine import TINY
from tests.unit.measure.reference.layers import tiny_target
from vllm_eagle_ext.draft.attention import LayerAttention
from vllm_eagle_ext.draft.registry import families
from vllm_eagle_ext.draft.rope_config import Rope
from vllm_eagle_ext.draft.vocabulary import Vocabulary
from vllm_eagle_ext.families.eagle3.names import QWEN3_DRAFTER
from vllm_eagle_ext.measure.reference.dflash import DFlashReference
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.measure.reference.published import (
    NotComputedError,
    embeddings_and_head,
    load_reference,
    load_target,
    unsupported_reason,
)
from vllm_eagle_ext.start.check import CheckRequest, run_check

TARGETS = {"native": "target", "postnorm": "target", "gated": "target", "dflash": "hybrid_target"}


def spec_of(draft: str, **options):
    request = CheckRequest(draft=str(TINY / draft), target=str(TINY / TARGETS[draft]), options=options)
    return run_check(request).inspection.spec


@pytest.fixture(scope="module")
def target():
    return load_target(TINY / "target")


def differing(one, other) -> list[str]:
    """Fields that are not equal."""
    names = []
    for name in (field.name for field in fields(one)):
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, dict):
            equal = mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
        else:
            equal = torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
        names += [] if equal else [name]
    return names


@pytest.mark.parametrize("draft", ["native", "postnorm", "gated"])
def test_the_spec_reads_what_the_file_says(draft, target):
    plain = Eagle3Reference.load(
        TINY / draft, target.model.embed_tokens.weight.data, target.lm_head.weight.data
    )
    assert differing(load_reference(spec_of(draft), TINY / draft, target), plain) == []


def test_dflash_reads_its_layers():
    target, spec = load_target(TINY / "hybrid_target"), spec_of("dflash")
    assert differing(
        load_reference(spec, TINY / "dflash", target),
        DFlashReference.load(TINY / "dflash", *embeddings_and_head(target)),
    ) == []  # fmt: skip
    causal = replace(spec, layers=(LayerAttention(64, True),) * 2)
    other = load_reference(causal, TINY / "dflash", target)
    assert (list(other.causal), list(other.windows)) == ([True] * 2, [64] * 2)


def test_what_the_spec_says_otherwise_is_followed(target):
    changed = replace(spec_of("postnorm", norm_output=False), rope=Rope(5e5))
    reference = load_reference(changed, TINY / "postnorm", target)
    assert (reference.norm_output, reference.rotary.theta) == (False, 5e5)


def test_a_map_of_target_ids_is_no_offset(target):
    spec = spec_of("postnorm")
    ids = load_reference(spec, TINY / "postnorm", target).target_ids
    absolute = replace(spec, vocabulary=Vocabulary(spec.vocabulary.size, "absolute"))
    as_ids = load_reference(absolute, TINY / "postnorm", target).target_ids
    assert torch.equal(as_ids + torch.arange(len(ids)), ids)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"family": families()["mla"]}, "MLA EAGLE-3"),
        ({"weights": "bin"}, "safetensors"),
        ({"quantisation": "fp8"}, "fp8"),
        ({"rope": Rope(None), "drafter": QWEN3_DRAFTER}, "rope_theta"),
    ],
)
def test_obstacles(changed, said):
    assert said in str(unsupported_reason(replace(spec_of("postnorm"), **changed), TINY / "postnorm"))


@pytest.mark.parametrize(("family", "dropped"), [("native", False), ("p-eagle", True), ("dflash", True)])
def test_sections_of_a_stretched_rope(tmp_path, family, dropped):
    """Drafts of one pass are served without them, and vLLM computes another YaRN with them."""
    draft = valid_draft(family)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    layers = draft.config.get(LAYER, draft.config)
    layers["rope_parameters"] = yarn | {"rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    reason = unsupported_reason(inspect(draft, tmp_path).spec, tmp_path)
    assert (reason is None) == dropped, reason


def loaded(draft: Draft, folder: Path, **options):
    spec = inspect(draft, folder, **options).spec
    return load_reference(spec, folder, tiny_target())


@pytest.mark.parametrize("family", ["native", "p-eagle", "dflash"])
def test_a_tensor_that_is_not_computed_with(tmp_path, family):
    """Whatever it may be: the reference does not draft as this file."""
    draft = valid_draft(family)
    draft.tensors["layers.0.mlp.extra_norm.weight"] = torch.ones(64)
    draft.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    with pytest.raises(NotComputedError, match=r"with layers\.0\.mlp\.extra_norm\.weight$"):
        loaded(draft, tmp_path, strict=False)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("post-norm", {"fc_norm": None}, r"fc_norm\.0\.weight"),  # a norm that no flag mentions
        ("native", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("dflash", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("dflash", {}, r"mask_embedding\.pt"),  # next to the weights
    ],
)
def test_what_is_not_computed(tmp_path, family, changes, said):
    draft = valid_draft(family)
    draft.config = {k: v for k, v in (draft.config | changes).items() if v is not None}
    if not changes:
        torch.save(torch.ones(64), tmp_path / "mask_embedding.pt")
    with pytest.raises(NotComputedError, match=said):
        loaded(draft, tmp_path, strict=False)


@pytest.mark.parametrize("family", ["native", "post-norm", "speculators", "p-eagle", "dflash"])
def test_blocks_listed_otherwise_are_the_same_draft(tmp_path, family):
    """The same layer_ids, each with its own block of fc, its norm and its part of mask_hidden."""
    plain, listed = valid_draft(family), valid_draft(family)
    swap = (2, 0, 1)
    layer_ids = inspect(plain, tmp_path / "plain").spec.aux_layers.layer_ids
    swap = (*swap, *range(3, len(layer_ids)))
    for name in ("fc.weight", "mask_hidden"):
        if name in listed.tensors:
            blocks = listed.tensors[name].chunk(len(layer_ids), dim=-1)
            listed.tensors[name] = torch.cat([blocks[at] for at in swap], dim=-1)
    for block, at in enumerate(swap):
        if family == "post-norm":
            listed.tensors[f"fc_norm.{block}.weight"] = plain.tensors[f"fc_norm.{at}.weight"]
    one = loaded(plain, tmp_path / "plain")
    other = loaded(listed, tmp_path / "listed", aux_layers=[layer_ids[at] for at in swap])
    states = [torch.randn(6, 64) for _ in layer_ids]
    drafts = [
        reference.draft(3, 3, reference.true_rows([1, 2, 3, 4, 5, 6], states))
        for reference in (one, other)
    ]
    assert drafts[0] == drafts[1]


def test_dflash_with_a_vocabulary_of_its_own(tmp_path):
    draft, size = valid_draft("dflash"), 32
    kept = 3 * torch.arange(size)
    draft.config["draft_vocab_size"] = size
    draft.tensors["lm_head.weight"] = torch.randn(size, 64)
    draft.tensors["d2t"] = kept - torch.arange(size)
    reference = loaded(draft, tmp_path)
    states = [torch.randn(6, 64) for _ in range(3)]
    rows = reference.true_rows([1, 2, 3, 4, 5, 6], states)
    tokens = reference.draft(3, 4, rows).tokens
    rows_of_head = reference.logits(rows[1][:4], 5, 4).argmax(-1)
    assert tokens == kept[rows_of_head].tolist()
