"""What vLLM alone would read otherwise."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import VOCAB
from tests.support.drafts import as_specforge, inspect, valid_draft
from tests.unit.draft.rules.changes import ANGELSLIM, TOP_IDS, key, more, no_key, tensor
from vllm_eagle_ext.draft.stock_gaps import UNKNOWN_ARCHITECTURES, stock_gaps
from vllm_eagle_ext.families.drafter_classes import drafters

INNER = "transformer_layer_config.eagle_config"  # the root's goes first
ZEROS = tensor("d2t", lambda _: torch.zeros(VOCAB, dtype=torch.long))


def reduced(draft):
    """A vocabulary of some of the target's tokens, and its map."""
    of = valid_draft("native")
    draft.config["draft_vocab_size"] = of.config["draft_vocab_size"]
    draft.tensors |= {name: of.tensors[name] for name in ("lm_head.weight", "d2t")}


MAPPED = {"speculators": [], "p-eagle": [], "dflash": [reduced]}  # which plain vLLM serves


def renamed(name, other):
    return lambda draft: draft.tensors.update({other: draft.tensors.pop(name)})


def looked_up(name, method):
    """What vLLM makes of a published architecture: its name for the method stands in it."""
    front = {"eagle3": "Eagle3", "dflash": "DFlash", "dspark": ""}[method]
    shows = name.startswith(front) or name.endswith(front)
    return name if shows else front + name


def test_names_that_vllm_lacks():
    from vllm.model_executor.models.registry import _VLLM_MODELS

    drafts = {name: drafter.method for drafter in drafters() for name in drafter.published}
    assert {
        name for name, method in drafts.items() if looked_up(name, method) not in _VLLM_MODELS
    } == UNKNOWN_ARCHITECTURES


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        pytest.param("speculators", [], None, id="speculators"),
        pytest.param("speculators", [key(TOP_IDS, [5, 2, 4])], None, id="captured_by_layer"),
        pytest.param("p-eagle", [], None, id="p_eagle"),
        pytest.param("dflash", [], None, id="dflash"),
        pytest.param("dflash", [reduced], None, id="dflash_reduced"),
        pytest.param(
            "dflash", [key("dflash_config.target_layer_ids", [5, 1, 3])], "ascending order", id="list"
        ),
        pytest.param("native", [no_key("eagle_config"), key(ANGELSLIM, [1, 2, 3])], ANGELSLIM, id="key"),
        pytest.param("native", [], "nested in eagle_config", id="nested"),
        pytest.param("p-eagle", [as_specforge], "nested in eagle_config", id="specforge_p_eagle"),
        pytest.param(
            "native", [key("architectures", ["CosyVoice3Eagle3LlamaForCausalLM"])], "no class", id="name"
        ),
        pytest.param("speculators", [no_key("norm_before_residual")], "norm_before_residual", id="flag"),
        pytest.param("native", [key("attention_bias", None)], "nulls", id="null"),
        pytest.param("native", [key("eagle_config.norm_before_fc", None)], "nulls", id="nested_null"),
        pytest.param("no_aux", [], "hands over aux states", id="no_aux"),
        pytest.param("native", [renamed("fc.weight", "encoder.fc.weight")], "encoder.fc", id="tensor"),
        *(
            pytest.param(family, [*changes, renamed("d2t", name)], name, id=f"{family}_{name}")
            for family, changes in MAPPED.items()
            for name in ("draft_id_to_target_id", "model.d2t", "model.draft_id_to_target_id")
        ),
        pytest.param("speculators", [renamed("t2d", "model.t2d")], None, id="t2d_is_dropped"),
        pytest.param("speculators", [key("eagle_config", {}), key(INNER, 5)], None, id="no_block"),
        pytest.param(
            "dflash", [renamed("fc.weight", "model.fc.weight")], "model.fc", id="dflash_tensor"
        ),
        pytest.param("dflash", [renamed("fc.weight", "encoder.fc.weight")], None, id="dflash_encoder"),
        pytest.param("dflash", [more("d2t", VOCAB), ZEROS], "whole vocabulary", id="d2t"),
        pytest.param("dflash", [key("input_embedding_scale", 8.0)], "input_embedding_scale", id="scale"),
    ],
)
def test_gap(tmp_path, family, changes, words):
    draft = valid_draft(family)
    for change in changes:
        change(draft)
    inspection = inspect(draft, tmp_path)
    assert not inspection.errors
    gaps = stock_gaps(inspection.case)
    if words is None:
        assert gaps == []
    else:
        assert words in "; ".join(gaps)
