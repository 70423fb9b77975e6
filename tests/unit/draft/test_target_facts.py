"""What is read of a target's config.json: the block of its language model, as vLLM finds it."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import TARGET
from vllm_eagle_ext.draft import TargetFacts
from vllm_eagle_ext.draft.rope_config import Rope
from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.errors import UnsupportedDraftError

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


def test_what_a_draft_is_compared_with(tmp_path):
    facts = TargetFacts.from_config(TARGET, tmp_path)
    assert (facts.rope, facts.max_position_embeddings) == (Rope(10000.0), 512)
    assert facts.folder == tmp_path


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
    block = text_config(json.loads(config.to_json_string(use_diff=False)))
    assert block["hidden_size"] == config.get_text_config(decoder=True).hidden_size


def test_the_block_is_that_of_vllms_own_classes():
    pytest.importorskip("vllm")
    from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config
    from vllm.transformers_utils.configs.qwen3_asr import Qwen3ASRConfig

    for config in (Qwen3ASRConfig(), DeepseekVLV2Config(language_config={"hidden_size": 96})):
        block = text_config(json.loads(config.to_json_string(use_diff=False)))
        assert block["hidden_size"] == config.get_text_config().hidden_size


def test_target_vocabulary_of_the_root():
    text = {key: value for key, value in TARGET.items() if key != "vocab_size"}
    assert TargetFacts.from_config({"vocab_size": 77, "text_config": text}).vocab_size == 77


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        pytest.param({}, 1.0, id="llama"),
        pytest.param({"model_type": "gemma4_text"}, HIDDEN**0.5, id="gemma"),
        pytest.param({"model_type": "granite", "embedding_multiplier": 12.0}, 12.0, id="granite"),
        pytest.param({"model_type": "minicpm", "scale_emb": 12}, 12.0, id="minicpm"),
        pytest.param({"embedding_multiplier": "x"}, 1.0, id="malformed"),
    ],
)
def test_what_the_embeddings_are_multiplied_by(keys, factor):
    assert TargetFacts.from_config(TARGET | keys).embedding_scale == factor
    composite = {"model_type": "composite", "text_config": TARGET | keys}
    assert TargetFacts.from_config(composite).embedding_scale == factor


@pytest.mark.parametrize("value", [None, 0, -1, "8", True, 8.0])
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_target_sizes_are_needed(key, value):
    with pytest.raises(UnsupportedDraftError, match=f"{key} of the target"):
        TargetFacts.from_config(TARGET | {key: value})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"rope_theta": "x"}, id="theta"),
        pytest.param({"rope_theta": [1]}, id="theta_list"),
        pytest.param({"partial_rotary_factor": "x"}, id="partial"),
        pytest.param({"rope_scaling": {"type": "yarn", "factor": "x"}}, id="factor"),
        pytest.param({"max_position_embeddings": "x"}, id="length"),
    ],
)
def test_a_malformed_target_raises_nothing_else(change):
    with contextlib.suppress(UnsupportedDraftError):
        assert str(TargetFacts.from_config(TARGET | change).rope)
