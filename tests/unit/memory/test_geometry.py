"""Shapes read from a target's config.json."""

from __future__ import annotations

import pytest

from tests.unit.memory.configs import TARGETS, config
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.geometry import STATE_DTYPE_UNREAD, read_target
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"linear_num_key_heads": None}, "linear_num_key_heads"),
        ({"linear_key_head_dim": -128}, "linear_key_head_dim"),
        ({"linear_value_head_dim": 128.0}, "linear_value_head_dim"),
        ({"linear_conv_kernel_dim": True}, "linear_conv_kernel_dim"),
        ({"linear_num_value_heads": 10**12}, "linear_num_value_heads"),
        ({"num_key_value_heads": "four"}, "num_key_value_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"full_attention_interval": None}, "full_attention_interval"),
        ({"full_attention_interval": 1}, "full_attention_interval"),
        ({"full_attention_interval": 65}, "full_attention_interval"),
        ({"layer_types": ["full_attention"] * 64}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 64}, "layer_types"),
        ({"layer_types": 7}, "layer_types"),
        ({"mamba_ssm_dtype": "float64"}, "mamba_ssm_dtype"),
        ({"dtype": ["bfloat16"]}, "dtype"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
    ],
)
def test_a_config_that_is_refused(changes, field):
    with pytest.raises(UnsupportedTargetError) as caught:
        read_target(config("qwen3_6_27b", **changes))
    error = caught.value
    assert error.field == f"{field} of the target's config.json"
    assert error.value == changes[field]
    for part in (error.field, error.allowed, "What to do: "):
        assert part in str(error)


@pytest.mark.parametrize("tp", [3, 32])
def test_ranks_that_divide_no_heads(tp):
    with pytest.raises(UnsupportedTargetError, match=f"tensor_parallel_size is {tp}.*16 key heads"):
        read_target(TARGETS["27B"], tp=tp)


def test_dtypes():
    text = TARGETS["27B"]["text_config"]
    assert read_target(text).recurrent == read_target(TARGETS["27B"]).recurrent
    listed = config("qwen3_6_27b", layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 16)
    assert read_target(listed) == read_target(TARGETS["27B"])
    assert read_target(TARGETS["Next-80B"]).recurrent.state_bytes == 2
    assert read_target(TARGETS["Next-80B"], fp32_state=True).recurrent.state_bytes == 4
    assert read_target(TARGETS["27B"], kv_bytes=1).attention.token_bytes == 2048
    # vLLM serves a checkpoint in float32 as 16 bit.
    assert read_target(config("qwen3_6_27b", dtype="float32")).recurrent.model_bytes == 2


def test_those_that_are_unread_have_no_config_hook_of_vllms():
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    assert set(REPLAYING_TARGETS) - set(MODELS_CONFIG_MAP) == set(STATE_DTYPE_UNREAD)


@pytest.mark.parametrize(
    ("architecture", "size"),
    [("Qwen3_5ForConditionalGeneration", 4), *((name, 2) for name in STATE_DTYPE_UNREAD)],
)
def test_bytes_of_a_state(architecture, size):
    read = read_target(
        config("qwen3_6_27b", mamba_ssm_dtype="float32") | {"architectures": [architecture]}
    )
    assert read.recurrent.state_bytes == size
