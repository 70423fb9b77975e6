"""Valid pairs that vLLM fails on once the weights are loaded are refused before."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    LAYERS,
    VOCAB,
    write_target,
)
from tests.support.drafts import valid_draft, write
from tests.support.random_targets import LATENT_SIZES
from tests.unit.start.configs import speculative_config
from vllm_eagle_ext.errors import UnsupportedDraftError, UnsupportedTargetError
from vllm_eagle_ext.start.rules.cache_groups import is_cut

DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **LATENT_SIZES}
WINDOWED = ["sliding_attention", "full_attention"] * (LAYERS // 2)
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "layer_types": WINDOWED,
    "sliding_window": 16,
}
# Full layers have larger heads than windowed ones, and the config states them per layer.
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "layer_types": WINDOWED,
    "sliding_window": 16,
    "hidden_size_per_layer_input": 0,
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")

    def make(keys, family, layers="auto", options=None, **arguments):
        draft = valid_draft(family)
        return speculative_config(
            write_target(tmp_path / "target", **keys), write(draft, tmp_path / "draft"),
            options={"aux_layers": layers} | (options or {}), arguments=arguments,
            method=draft.method, num_speculative_tokens=draft.k,
        ).draft_model_config.architecture  # fmt: skip

    return make


def test_embeddings_of_deepseek_layers_are_refused(start):
    assert "EagleExt" in start(DEEPSEEK, "mla", [1, 4, 8])
    with pytest.raises(UnsupportedTargetError, match="fail at layer 0's input"):
        start(DEEPSEEK, "mla", [0, 4, 8])


STABLELM = {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}


@pytest.mark.parametrize("family", ["native", "dflash"])
def test_a_target_without_hidden_states_is_refused(start, family):
    with pytest.raises(UnsupportedTargetError, match="lacks SupportsEagle3") as caught:
        start(STABLELM, family)
    assert caught.value.value == "StableLmForCausalLM"
    assert "--model-impl transformers" in caught.value.remedy


def test_a_wrapper_of_one_without_is_refused(start):
    text = {
        "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_size": HIDDEN,
        "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
    }  # fmt: skip
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "num_attention_heads": 2}
    wrapper = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text,
        "vision_config": vision, "image_token_index": 5,
    }  # fmt: skip
    with pytest.raises(UnsupportedTargetError, match="lacks SupportsEagle3"):
        start(wrapper, "native")


def test_another_packages_class_is_asked_itself(start, monkeypatch):
    """One that replaces vLLM's class of a listed architecture, and one of an architecture of its own."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM
    from vllm.model_executor.models.stablelm import StablelmForCausalLM

    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    ModelRegistry.register_model("StableLmForCausalLM", LlamaForCausalLM)
    assert "EagleExt" in start(STABLELM, "native")
    ModelRegistry.register_model("OtherForCausalLM", StablelmForCausalLM)
    with pytest.raises(UnsupportedTargetError, match="OtherForCausalLM"):
        start({"architectures": ["OtherForCausalLM"]}, "native")


def test_a_draft_whose_layers_v1_would_scatter_is_refused(start, vllm_log):
    with pytest.raises(UnsupportedDraftError, match="4 full and 4 windowed") as caught:
        start(GPT_OSS, "dflash")
    assert "--disable-hybrid-kv-cache-manager" in caught.value.remedy
    assert not vllm_log.containing("windowed layers")
    assert "EagleExt" in start(GPT_OSS, "dflash", options={"strict": False})
    assert vllm_log.containing("4 full and 4 windowed")


def test_heads_of_the_full_layers_count(start):
    with pytest.raises(UnsupportedDraftError, match="4 full and 4 windowed"):
        start(GEMMA4 | {"head_dim": 16, "global_head_dim": HEAD_DIM}, "dflash")


@pytest.mark.parametrize(
    ("target", "family", "setting"),
    [
        (GPT_OSS, "dflash", {"disable_hybrid_kv_cache_manager": True}),
        (GPT_OSS, "native", {}),  # one layer lies in one group
        (GPT_OSS | {"head_dim": 2 * HEAD_DIM}, "dflash", {}),  # not pooled with the target's
        (GPT_OSS | {"num_key_value_heads": 2 * KV_HEADS}, "dflash", {}),
        (GEMMA4 | {"global_head_dim": 2 * HEAD_DIM}, "dflash", {}),
        ({}, "dflash", {}),
        ({}, "native", {"layers": [0, 4, 8]}),
        (STABLELM, "no_aux", {}),
        (STABLELM, "native", {"model_impl": "transformers"}),  # whose class hands them out
    ],
)
def test_others_pass(start, target, family, setting):
    assert "EagleExt" in start(target, family, **setting)


def test_the_pool_is_cut_as_vllm_cuts_it():
    """Over all small targets, against vLLM's own grouping."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    from vllm_eagle_ext.replay.built_caches import planning

    shape = {"block_size": 16, "num_kv_heads": 1, "head_size": 32, "dtype": torch.bfloat16}
    full_spec, windowed_spec = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=16)
    for full in range(1, 9):
        for windowed in range(1, 13):
            for drafts in range(2, 9):
                specs = {f"full{i}": full_spec for i in range(full)}
                specs |= {f"windowed{i}": windowed_spec for i in range(windowed)}
                specs |= {f"draft{i}": full_spec for i in range(drafts)}
                groups = planning._get_kv_cache_groups_uniform_page_size(specs)
                holding = [g for g in groups if any(n.startswith("draft") for n in g.layer_names)]
                assert is_cut(full + drafts, windowed) == (len(holding) > 1), (full, windowed, drafts)
