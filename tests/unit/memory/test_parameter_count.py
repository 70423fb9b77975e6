from __future__ import annotations

import pytest

from tests.unit.memory.configs import TARGETS, config
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.parameter_count import estimate_weights


@pytest.mark.parametrize(
    ("name", "billions"), [("27B", 26.896), ("35B-A3B", 34.661), ("Next-80B", 79.674)]
)
def test_estimate_of_weights(name, billions):
    """Counted once on transformers' own models of these configs, on the meta device."""
    found = estimate_weights(TARGETS[name])
    assert found.size == pytest.approx(2e9 * billions, rel=0.001)
    assert found.error <= 0.02


def test_estimate_of_a_quantised_target():
    quantised = {**TARGETS["27B"], "quantization_config": {"quant_method": "fp8"}}
    found = estimate_weights(quantised)
    assert 0.5 < found.size / (2 * 26.896e9) < 0.6
    assert found.error > 0.1


def test_tied_embeddings_and_an_image_encoder():
    tied = estimate_weights(TARGETS["4B"]).size
    untied = estimate_weights({**TARGETS["4B"], "tie_word_embeddings": False}).size
    assert untied - tied == 2 * 248320 * 2560
    # Defaults of transformers' Qwen3_5VisionConfig: its model has 453.7 million parameters.
    vision = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 3584,
        "spatial_merge_size": 2,
    }  # fmt: skip
    seeing = estimate_weights({**TARGETS["4B"], "vision_config": vision}).size
    assert seeing - tied == pytest.approx(2 * 453.65e6, rel=0.02)
    other = estimate_weights({**TARGETS["4B"], "vision_config": {"depth": "deep"}}).size
    assert other == tied


def test_dense_layers_of_a_mixture():
    sparse = config("qwen3_next_80b_a3b")
    mixed = config("qwen3_next_80b_a3b", mlp_only_layers=[0, 1])
    experts = 513 * 3 * 2048 * 512 + 2048 * 513
    saved = 2 * 2 * (experts - 3 * 2048 * 5632)
    assert estimate_weights(sparse).size - estimate_weights(mixed).size == saved


def test_a_config_that_says_too_little():
    text = config("qwen3_6_27b", intermediate_size=None)
    with pytest.raises(UnsupportedTargetError, match="intermediate_size of the target's config.json"):
        estimate_weights(text)
