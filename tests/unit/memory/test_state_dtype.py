"""The dtype of recurrent states that a config states: read where vLLM reads it."""

from __future__ import annotations

import pytest

from tests.unit.memory.configs import config
from vllm_eagle_ext.memory.geometry import STATE_DTYPE_UNREAD, read_target
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS


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
