"""Rotary embedding against vLLM's, in both spellings of config.json."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.model_executor.layers.rotary_embedding import get_rope

from vllm_eagle_ext.measure.reference.rotary import Rotary, read_rotary, rope_unsupported_reason

ORIGINAL = "original_max_position_embeddings"
D, ROWS, THETA = 64, 48, 50000.0
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64,
}  # fmt: skip
BLOCKS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn_long": YARN | {ORIGINAL: 4096},
    "yarn_betas": YARN | {"beta_fast": 8.0, "beta_slow": 2.0},
    "yarn_not_truncated": YARN | {"truncate": False, ORIGINAL: 512},
    "yarn_attention_factor": YARN | {"attention_factor": 0.7},
    "yarn_mscale": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5},
    "yarn_mscale_alone": YARN | {"mscale": 0.8},
    "yarn_of_factor_1": YARN | {"factor": 1.0, ORIGINAL: 64},
}


def queries() -> torch.Tensor:  # [ROWS, 2, D]
    return torch.randn(ROWS, 2, D, generator=torch.Generator().manual_seed(4))


def mine(config: dict[str, Any]) -> torch.Tensor:
    assert rope_unsupported_reason(config) is None
    return read_rotary(config)(queries(), torch.arange(ROWS)[:, None, None])


def of_vllm(block: dict[str, Any], *, is_neox_style: bool = True) -> torch.Tensor:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        rope = get_rope(D, ROWS, is_neox_style, {**block, "rope_theta": THETA}, torch.float32)
    x = queries().reshape(ROWS, 2 * D)
    turned, _ = rope.forward_native(torch.arange(ROWS), x.clone(), x.clone())
    return turned.view(ROWS, 2, D)


@pytest.mark.parametrize("name", BLOCKS)
def test_as_vllm_and_unlike_a_plain_rope(name):
    turned = mine({"rope_theta": THETA, "rope_parameters": BLOCKS[name]})
    torch.testing.assert_close(turned, of_vllm(BLOCKS[name]), atol=2e-5, rtol=0)
    plain = (turned - of_vllm(BLOCKS["default"])).abs().max() < 0.1
    assert plain == (name in ("default", "yarn_of_factor_1"))


def test_rope_scaling_wins():
    config = {"rope_theta": THETA, "rope_scaling": BLOCKS["linear"], "rope_parameters": YARN}
    torch.testing.assert_close(mine(config), of_vllm(BLOCKS["linear"]), atol=2e-5, rtol=0)


@pytest.mark.parametrize("place", ["root", "block"])
def test_a_part_of_each_head(place):
    block = {"rope_type": "default", "partial_rotary_factor": 0.25}
    config = {"rope_parameters": block} if place == "block" else {"partial_rotary_factor": 0.25}
    torch.testing.assert_close(mine({"rope_theta": THETA, **config}), of_vllm(block), atol=2e-5, rtol=0)


def test_neighbouring_channels():
    rotary = Rotary(THETA, pairs=True)
    rotated = rotary(queries(), torch.arange(ROWS)[:, None, None])
    torch.testing.assert_close(
        rotated, of_vllm({"rope_type": "default"}, is_neox_style=False), atol=2e-5, rtol=0
    )


def test_the_longest_position_stands_in_for_the_original_length():
    block = {name: value for name, value in YARN.items() if name != ORIGINAL}
    rotated = mine({"rope_theta": THETA, "rope_scaling": block, "max_position_embeddings": 32})
    assert torch.equal(rotated, mine({"rope_theta": THETA, "rope_scaling": YARN}))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "'longrope'"),
        ({"type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "yarn", ORIGINAL: 32}, "factor of the draft's yarn rope is not stated"),
        ({"rope_type": "llama3", "factor": 8.0, ORIGINAL: 8}, "low_freq_factor, high_freq_factor"),
        (YARN | {"short_factor": [1.0]}, "no use for short_factor"),
        ({"full_attention": {"rope_theta": 1e4}}, "no use for full_attention"),
        ({"rope_type": "default", "use_fope": True}, "no use for use_fope"),
    ],
)
def test_what_is_not_computed(block, said):
    assert said in str(rope_unsupported_reason({"rope_theta": THETA, "rope_parameters": block}))


@pytest.mark.parametrize(
    "block",
    [
        {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        {"rope_type": "default", "factor": 1.0, "use_fope": False},
        {"rope_type": "yarn", "factor": 2.0, ORIGINAL: 32, "beta_fast": None},
        None,
    ],
)
def test_what_has_no_effect(block):
    assert rope_unsupported_reason({"rope_parameters": block}) is None


def test_yarn_with_sections_is_another_in_vllm():
    """Its kernel makes the ramp from a longer table; without a kept section it is YaRN as published."""
    sections = {"mrope_section": [16, 8, 8]}
    theirs = of_vllm(YARN | sections | {"mrope_interleaved": True})
    assert (theirs - of_vllm(YARN)).abs().max() > 0.01
    config = {"rope_theta": THETA, "rope_parameters": YARN | sections}
    assert "mrope_section" in str(rope_unsupported_reason(config))
    assert rope_unsupported_reason(config, sections=False) is None


def test_sections_are_nothing_to_a_linear_rope():
    block = BLOCKS["linear"]
    theirs = of_vllm(block | {"mrope_section": [16, 8, 8]})
    torch.testing.assert_close(theirs, of_vllm(block), atol=2e-5, rtol=0)
