"""What is read of a target's config."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.checkpoints import HIDDEN, LAYERS, VOCAB
from tests.support.drafts import TARGET
from vllm_eagle_ext.checkpoint import TargetFacts
from vllm_eagle_ext.checkpoint.rope_config import Rope
from vllm_eagle_ext.errors import UnsupportedDraftError


@pytest.mark.parametrize("block", [None, "text_config", "language_config", "llm_config"])
def test_target_facts(tmp_path, block):
    config = {"vocab_size": 5, "model_type": "composite", block: TARGET} if block else TARGET
    facts = TargetFacts.from_config(config, tmp_path)
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (LAYERS, HIDDEN, VOCAB)
    assert (facts.rope, facts.max_position_embeddings) == (Rope(10000.0), 512)
    assert facts.folder == tmp_path


def test_target_vocabulary_of_the_root():
    text = {key: value for key, value in TARGET.items() if key != "vocab_size"}
    assert TargetFacts.from_config({"vocab_size": 77, "text_config": text}).vocab_size == 77


@pytest.mark.parametrize(
    ("stated", "factor"),
    [
        pytest.param({}, 1.0, id="llama"),
        pytest.param({"model_type": "gemma4_text"}, HIDDEN**0.5, id="gemma"),
        pytest.param({"model_type": "granite", "embedding_multiplier": 12.0}, 12.0, id="granite"),
        pytest.param({"model_type": "minicpm", "scale_emb": 12}, 12.0, id="minicpm"),
        pytest.param({"embedding_multiplier": "x"}, 1.0, id="malformed"),
    ],
)
def test_what_the_embeddings_are_multiplied_by(stated, factor):
    assert TargetFacts.from_config(TARGET | stated).embedding_scale == factor
    composite = {"model_type": "composite", "text_config": TARGET | stated}
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
