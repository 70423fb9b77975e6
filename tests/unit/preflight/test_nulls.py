"""What vLLM is given of a config.json that it could not read as it is."""

from __future__ import annotations

import json

import pytest

from tests.support.checkpoints import tiny_draft
from tests.support.drafts import LAYER, valid_draft, write
from tests.unit.checkpoint.test_typed_keys import SETTINGS
from tests.unit.preflight.configs import speculative_config

NULLS = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "initializer_range", "hidden_act", "use_cache",
    "rope_theta", "auto_map",
)  # fmt: skip


def config_of(target, draft, **keys):
    return speculative_config(target, draft, **keys).draft_model_config.hf_config.to_dict()


def test_nulls_are_no_keys(target, tmp_path):
    """The config is the one without these keys, and so is the class that reads it afterwards."""
    from transformers import PreTrainedConfig

    reader = PreTrainedConfig.__dict__["get_config_dict"]
    plain = config_of(target, tiny_draft(tmp_path / "draft", rope_theta=10000.0))
    folder = tiny_draft(tmp_path / "draft", **dict.fromkeys(NULLS), rope_scaling={"factor": None})
    assert config_of(target, folder) == plain
    assert PreTrainedConfig.__dict__["get_config_dict"] is reader


@pytest.mark.parametrize(
    ("family", "stated"),
    [
        ("speculators", {"has_no_defaults_at_init": False, "to_dict": 1, "sub_configs": {"a": {}}}),
        ("native", SETTINGS),
    ],
)
def test_what_a_library_saved_of_its_class_stops_nothing(target, tmp_path, family, stated):
    """Neither here nor in vLLM, whose start these are."""
    plain, draft = valid_draft(family), valid_draft(family)
    draft.config |= stated
    for options in ({}, {"enabled": False}):
        found, wanted = (
            config_of(target, write(one, tmp_path / "draft"), options=options) for one in (draft, plain)
        )
        for key in wanted.keys() - {"model"}:  # the config as it was published
            assert found[key] == wanted[key]


def test_transformers_still_stops_at_a_null():
    """As long as this holds `compat.reading_configs` is needed."""
    from huggingface_hub.errors import StrictDataclassFieldValidationError
    from transformers import LlamaConfig

    with pytest.raises(StrictDataclassFieldValidationError, match="attention_bias"):
        LlamaConfig(attention_bias=None)


def test_a_start_that_fails_leaves_the_reader(target, tmp_path):
    from transformers import PreTrainedConfig

    reader = PreTrainedConfig.__dict__["get_config_dict"]
    with pytest.raises(Exception, match="prompt_lookup"):
        config_of(target, tiny_draft(tmp_path / "draft"), prompt_lookup_max="x", method="ngram")
    assert PreTrainedConfig.__dict__["get_config_dict"] is reader


def test_files_of_another_system_are_not_read_for_a_dtype(target, tmp_path):
    folder = tiny_draft(tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    del config["torch_dtype"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "._model.safetensors").write_bytes(b"\x00\x05\x16\x07" * 9)
    assert config_of(target, folder)["dtype"] == "bfloat16"


def test_nor_of_a_speculators_draft(target, tmp_path):
    """Whose class reads no `torch_dtype`; null positions would stop its rope."""
    draft = valid_draft("speculators")
    draft.config[LAYER] |= {"torch_dtype": "bfloat16", "max_position_embeddings": None}
    folder = write(draft, tmp_path / "draft")
    (folder / "._model.safetensors").write_bytes(b"\x00\x05\x16\x07" * 9)
    found = config_of(target, folder)
    assert found["dtype"] == "bfloat16"
    assert "max_position_embeddings" not in found or found["max_position_embeddings"]


def test_a_speculators_draft_needs_no_speculators_config(target, tmp_path):
    draft = valid_draft("speculators")
    draft.config["speculators_config"] = None
    draft.config[LAYER]["rope_theta"] = None
    assert config_of(target, write(draft, tmp_path / "draft"))["vocab_size"]
