"""Attention of each layer: causality, windows and heads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.drafts import LAYER, valid_draft
from vllm_eagle_ext.draft.attention import Heads, LayerAttention, read_heads
from vllm_eagle_ext.draft.draft_config import DraftConfig, parse_config
from vllm_eagle_ext.families.drafter_classes import drafters


def layers_of(spec_of, **changes: Any) -> tuple[LayerAttention, ...]:
    """Read the layers of a DFlash draft whose first layer is full and whose second one slides."""
    draft = valid_draft("dflash")
    nested = changes.pop("dflash_config", {})
    draft.config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32}
    draft.config |= changes
    draft.config["dflash_config"] |= nested
    return spec_of(draft).layers


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("causal", [None, True, False])
def test_causality_of_dflash(spec_of, is_causal, causal):
    layers = layers_of(spec_of, is_causal=is_causal, dflash_config={"causal": causal})
    flags = [flag for flag in (is_causal, causal) if flag is not None]
    expected = (flags[0], flags[0]) if flags else (False, True)
    assert tuple(layer.causal for layer in layers) == expected


@pytest.mark.parametrize("flags", [[], [False], [True]], ids=str)
@pytest.mark.parametrize(
    "kinds", [("full", "sliding"), ("full", "full"), ("sliding", "sliding")], ids=str
)
def test_causality_of_speculators_dflash(spec_of, kinds, flags):
    """Full layers are never causal, whatever the flag says; windows are, but for where it is set."""
    draft = valid_draft("dflash")
    layer = draft.config | {"layer_types": [f"{kind}_attention" for kind in kinds], "sliding_window": 32}
    dflash = layer.pop("dflash_config")
    draft.config = {
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [i + 1 for i in dflash["target_layer_ids"]],
        "mask_token_id": dflash["mask_token_id"],
        "block_size": layer.pop("block_size"),
        LAYER: layer,
    } | dict.fromkeys(["sliding_window_non_causal"][: len(flags)], *flags)
    spec = spec_of(draft)
    causal = [kind == "sliding" and flags != [True] for kind in kinds]
    assert [layer.causal for layer in spec.layers] == causal
    assert spec.aux_layers.layer_ids == (2, 4, 6)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        pytest.param({}, (None, 32), id="where_a_layer_slides"),
        pytest.param({"dflash_config": {"swa_window_size": 16}}, (None, 16), id="own_window"),
        pytest.param({"dflash_config": {"use_swa": True}}, (None, 32), id="forced_is_moot"),
        pytest.param({"layer_types": None}, (None, None), id="full"),
        pytest.param(
            {"layer_types": None, "dflash_config": {"use_swa": True}}, (32, 32), id="forced_on_all"
        ),
        pytest.param({"layer_types": ["sliding_attention"] * 2}, (32, 32), id="all_slide"),
        pytest.param(
            {"layer_types": None, "use_sliding_window": True, "max_window_layers": 1},
            (None, 32),
            id="derived",
        ),
        pytest.param(
            {"layer_types": None, "use_sliding_window": True}, (None, None), id="beyond_the_last_layer"
        ),
        pytest.param(
            {"layer_types": None, "use_sliding_window": False, "max_window_layers": 0},
            (None, None),
            id="switched_off",
        ),
    ],
)
def test_windows_of_dflash(spec_of, changes, windows):
    assert tuple(layer.window for layer in layers_of(spec_of, **changes)) == windows


def test_forced_windows_are_not_causal(spec_of):
    layers = layers_of(spec_of, layer_types=None, dflash_config={"use_swa": True})
    assert layers == (LayerAttention(32, False),) * 2


def test_eagle3_layers_are_causal_and_may_slide(spec_of):
    draft = valid_draft("native")
    assert spec_of(draft).layers == (LayerAttention(None, True),)
    draft.config |= {"layer_types": ["sliding_attention"], "sliding_window": 32}
    assert spec_of(draft).layers == (LayerAttention(32, True),)


@pytest.mark.parametrize(("family", "window"), [("qwen3", 32), ("native", None)])
def test_only_qwen3_configs_derive_windows(spec_of, family, window):
    draft = valid_draft(family)
    draft.config |= {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 32}
    assert spec_of(draft).layers == (LayerAttention(window, True),)


@pytest.mark.parametrize(
    ("backbone", "keys", "heads"),
    [
        pytest.param("llama", {}, Heads(2, 2, 32), id="llama"),
        pytest.param("deepseek", {}, Heads(2, 2, 32), id="deepseek"),
        pytest.param("qwen3", {}, Heads(2, 32, 128), id="qwen3"),
        pytest.param("qwen3", {"num_key_value_heads": 1, "head_dim": 16}, Heads(2, 1, 16), id="stated"),
        pytest.param("llama", {"num_key_value_heads": 1}, Heads(2, 1, 32), id="llama_kv_stated"),
    ],
)
def test_heads(backbone, keys, heads):
    base = valid_draft("native").config
    del base["num_key_value_heads"], base["head_dim"]
    config = parse_config(base | keys)
    assert isinstance(config, DraftConfig)
    backbones = {drafter.backbone.name: drafter.backbone for drafter in drafters()}
    assert read_heads(config, backbones[backbone]) == heads
