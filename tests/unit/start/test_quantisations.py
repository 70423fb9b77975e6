"""vLLM reads a draft's quantisation in the preflight, before a target is loaded."""

from __future__ import annotations

import pytest

from tests.support.drafting import skipping_without_a_kernel
from tests.support.drafts import valid_draft, write
from tests.unit.start.configs import speculative_config
from vllm_eagle_ext.errors import UnsupportedDraftError

GROUP = "config_groups.group_0"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (f"{GROUP}.weights.num_bits", "x", ("num_bits of the draft's", "valid integer")),
        (f"{GROUP}.weights.strategy", "x", ("strategy of the draft's", "not a valid")),
        (f"{GROUP}.weights.bits", 8, ("quantization_config", "bits")),
        (f"{GROUP}.weights", 5, ("quantization_config",)),
        (f"{GROUP}.input_activations.dynamic", False, ("quantization_config", "token")),
        ("config_groups", None, ("quantization_config",)),
    ],
)
def test_what_vllm_cannot_read_is_refused(target, tmp_path, place, value, words):
    draft = valid_draft("quantised")
    *path, key = place.split(".")
    block = draft.config["quantization_config"]
    for part in path:
        block = block[part]
    block[key] = value
    with pytest.raises(UnsupportedDraftError) as refused:
        speculative_config(target, write(draft, tmp_path / "draft"))
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_method_that_no_vllm_knows(target, tmp_path):
    draft = valid_draft("quantised")
    draft.config["quantization_config"]["quant_method"] = "tomorrow"
    with pytest.raises(ValueError, match="tomorrow"):
        speculative_config(target, write(draft, tmp_path / "draft"))


def test_what_it_reads_is_served(target, tmp_path):
    with skipping_without_a_kernel():
        config = speculative_config(target, write(valid_draft("quantised"), tmp_path / "draft"))
    assert config.draft_model_config.quantization == "compressed-tensors"
