"""Targets that only some of Hugging Face's automatic classes know."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN, LAYERS
from tests.support.targets.models import write_target
from vllm_eagle_ext.measure.reference.published import load_target, residual_stream


@pytest.mark.parametrize("family", ["qwen3.5", "minicpm-v-4.6", "minicpm-v-4.7"])
def test_the_text_model_of_one_with_images(tmp_path, family):
    """MiniCPM-V has no class for text alone; loaded by another, its layers would be new and random."""
    folder = write_target(family, tmp_path / "target", torch.float32)
    first, second = (residual_stream(load_target(folder), [1, 2, 3], [0, LAYERS]) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.shape == (3, HIDDEN)
        assert torch.equal(one, other)
