"""Every published draft: what it is found to be, in its true sizes, and what is said about it."""

from __future__ import annotations

import pytest

from tests.support.published import materialise, published
from vllm_eagle_ext.draft import Inspection, TargetFacts, inspect_draft, read_draft_files
from vllm_eagle_ext.draft.draft_config import flatten
from vllm_eagle_ext.draft.rules.keys import unknown_keys
from vllm_eagle_ext.draft.spec import DraftRequest

DRAFTS = published()


def inspect(draft, folder) -> Inspection:
    files = read_draft_files(str(materialise(draft, folder)))
    engine = DraftRequest(method=draft.method, k=draft.k, max_model_len=4096)
    return inspect_draft(files, TargetFacts.from_config(draft.target), engine)


def facts(inspection: Inspection) -> dict:
    """As a fixture's `expect` spells it; one that is not made out has no more."""
    verdict = "refused" if inspection.errors else "left" if inspection.is_passed_through else "served"
    said = {
        "verdict": verdict,
        "errors": sorted({finding.rule for finding in inspection.errors}),
        "warnings": sorted({finding.rule for finding in inspection.warnings}),
    }
    spec = inspection.spec
    if spec is None:
        return said
    flags = {name: flag.value for name, flag in spec.flags.items()}
    return said | flags | {
        "family": spec.family.name,
        "backbone": spec.drafter.backbone.name,
        "format": spec.format,
        "layer_ids": list(spec.aux_layers.layer_ids),
        "aux_rule": spec.aux_layers.rule,
        "draft_vocab_size": spec.vocabulary.size,
        "embeddings": spec.embeddings,
        "head": spec.head,
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "windows": [layer.window for layer in spec.layers],
        "causal": [layer.causal for layer in spec.layers],
    }  # fmt: skip


@pytest.mark.promise("the published drafts: a verdict for each")
@pytest.mark.parametrize("draft", DRAFTS, ids=[draft.slug for draft in DRAFTS])
def test_it_is_what_its_fixture_says(draft, tmp_path):
    said = facts(inspect(draft, tmp_path))
    expected = dict(draft.expect)
    if (rule := expected.pop("aux_rule", None)) is not None:
        assert rule in said["aux_rule"]
    assert {key: said.get(key) for key in expected} == expected


@pytest.mark.parametrize("draft", DRAFTS, ids=[draft.slug for draft in DRAFTS])
def test_every_mathematical_key_of_its_config_is_known(draft):
    flat = flatten(draft.config)
    assert unknown_keys(flat) == []
