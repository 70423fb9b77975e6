"""Which checkpoints have a reference, and that it is read as the checkpoint says."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from tests.support.engine import TINY
from vllm_eagle_ext.checkpoint.attention import LayerAttention
from vllm_eagle_ext.checkpoint.rope import Rope
from vllm_eagle_ext.checkpoint.vocabulary import Vocabulary
from vllm_eagle_ext.cli.check import CheckRequest, run_check
from vllm_eagle_ext.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.reference.published import load_reference, obstacle
from vllm_eagle_ext.reference.target import load_target
from vllm_eagle_ext.reference.walk import DFlashWalk

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
        load_reference(spec, TINY / "dflash", target).reference,
        DFlashWalk.load(TINY / "dflash", target).reference,
    ) == []  # fmt: skip
    causal = replace(spec, layers=(LayerAttention(64, True),) * 2)
    other = load_reference(causal, TINY / "dflash", target).reference
    assert (list(other.causal), list(other.windows)) == ([True] * 2, [64] * 2)


def test_what_the_spec_says_otherwise_is_followed(target):
    changed = replace(spec_of("postnorm", norm_output=False), rope=Rope(5e5))
    found = load_reference(changed, TINY / "postnorm", target)
    assert (found.norm_output, found.theta) == (False, 5e5)


def test_a_map_of_target_ids_is_no_offset(target):
    spec = spec_of("postnorm")
    ids = load_reference(spec, TINY / "postnorm", target).target_ids
    absolute = replace(spec, vocabulary=Vocabulary(spec.vocabulary.size, "absolute"))
    as_ids = load_reference(absolute, TINY / "postnorm", target).target_ids
    assert torch.equal(as_ids + torch.arange(len(ids)), ids)


@pytest.mark.parametrize("draft", TARGETS)
def test_the_tiny_drafts_have_one(draft):
    assert obstacle(spec_of(draft)) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"family": "mla"}, "MLA EAGLE-3"),
        ({"family": "p-eagle"}, "P-EAGLE"),
        ({"weights": "bin"}, "safetensors"),
        ({"quantisation": "fp8"}, "fp8"),
        ({"rope": Rope(1e4, kind="llama3", factor=8)}, "llama3 x8"),
        ({"rope": Rope(1e4, partial=0.5)}, "0.5 of each head"),
        ({"layers": (LayerAttention(64, True),)}, "windows"),
    ],
)
def test_obstacles(changed, said):
    assert said in str(obstacle(replace(spec_of("postnorm"), **changed)))


def test_embeddings_of_dflash_are_scaled(target):
    spec = spec_of("dflash")
    plain = load_reference(spec, TINY / "dflash", target).reference
    scaled = load_reference(replace(spec, embedding_scale=8.0), TINY / "dflash", target).reference
    assert torch.equal(scaled.embed_tokens, 8 * plain.embed_tokens)
