"""What is read of a target's config.json: the block of its language model, as vLLM finds it."""

from __future__ import annotations

import json

import pytest

from vllm_eagle_ext.checkpoint import TargetFacts
from vllm_eagle_ext.checkpoint.target_facts import text_config

SIZES = {"num_hidden_layers": 8, "hidden_size": 64, "vocab_size": 512}


@pytest.mark.parametrize(
    "places",
    [
        (),
        ("text_config",),
        ("language_config",),
        ("llm_config",),
        ("thinker_config", "text_config"),
        ("vlm_config", "text_config"),
        ("decoder",),
        ("generator",),
        ("text_encoder",),
        ("llm_config", "text_config"),
    ],
    ids="-".join,
)
def test_sizes_are_found_wherever_they_are_nested(places):
    config: dict = dict(SIZES)
    for place in reversed(places):
        config = {"model_type": "composite", "vision_config": {"hidden_size": 7}, place: config}
    facts = TargetFacts.from_config(config)
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == tuple(SIZES.values())


def test_other_blocks_of_a_plain_model_are_left_alone():
    assert text_config(SIZES | {"decoder": {"hidden_size": 7}})["hidden_size"] == 64
    assert text_config(SIZES | {"text_config": None, "llm_config": {}})["hidden_size"] == 64


def test_blocks_without_an_end():
    config: dict = dict(SIZES)
    for _ in range(500):
        config = {"text_config": config}
    assert "text_config" in text_config(config)


@pytest.mark.parametrize(
    "name",
    [
        "Gemma3Config", "Gemma4Config", "InternVLConfig", "LlavaConfig", "Llama4Config",
        "Mistral3Config", "Qwen2_5OmniConfig", "Qwen2_5_VLConfig", "Qwen3OmniMoeConfig",
        "Qwen3VLConfig", "Qwen3_5Config",
        "T5GemmaConfig",
    ],
)  # fmt: skip
def test_the_block_is_that_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, name)()
    found = text_config(json.loads(config.to_json_string(use_diff=False)))
    assert found["hidden_size"] == config.get_text_config(decoder=True).hidden_size


def test_the_block_is_that_of_vllms_own_classes():
    pytest.importorskip("vllm")
    from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config
    from vllm.transformers_utils.configs.qwen3_asr import Qwen3ASRConfig

    for config in (Qwen3ASRConfig(), DeepseekVLV2Config(language_config={"hidden_size": 96})):
        found = text_config(json.loads(config.to_json_string(use_diff=False)))
        assert found["hidden_size"] == config.get_text_config().hidden_size
