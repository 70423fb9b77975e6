"""What vLLM is given of a config.json that it could not read as it is."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
import transformers

from tests.support.checkpoints import tiny_draft
from tests.support.drafts import LAYER, valid_draft, write
from tests.unit.draft.test_silent_keys import NULLS
from tests.unit.start.configs import speculative_config
from vllm_eagle_ext.draft.draft_config import DraftConfig
from vllm_eagle_ext.draft.stock_gaps import NOT_NULL
from vllm_eagle_ext.start.build import build_without_nulls

# Settings of the class that a saved config may state, and a value with which vLLM goes on.
SETTINGS = {
    "attribute_map": {}, "has_no_defaults_at_init": False, "ignore_keys_at_rope_validation": ["x"],
    "per_layer_config": {}, "sub_configs": {},
}  # fmt: skip
CLASSES = ("DeepseekV3Config", "Glm4MoeConfig", "GptOssConfig", "LlamaConfig", "MistralConfig",
           "Qwen3Config")  # fmt: skip


def config_of(target, draft, **keys):
    return speculative_config(target, draft, **keys).draft_model_config.hf_config.to_dict()


def test_nulls_are_no_keys(target, tmp_path):
    """The config is the one without these keys, and so is the class that reads it afterwards."""
    from transformers import PreTrainedConfig

    reader = PreTrainedConfig.__dict__["get_config_dict"]
    plain = config_of(target, tiny_draft(tmp_path / "draft", rope_theta=10000.0))
    nulls = dict.fromkeys({*NULLS} - {"max_position_embeddings", "rope_scaling.factor"})
    folder = tiny_draft(tmp_path / "draft", **nulls, rope_scaling={"factor": None})
    assert config_of(target, folder) == plain
    assert PreTrainedConfig.__dict__["get_config_dict"] is reader


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("speculators", {"has_no_defaults_at_init": False, "to_dict": 1, "sub_configs": {"a": {}}}),
        ("native", SETTINGS),
    ],
)
def test_what_a_library_saved_of_its_class_stops_nothing(target, tmp_path, family, keys):
    plain, draft = valid_draft(family), valid_draft(family)
    draft.config |= keys
    for options in ({}, {"enabled": False}):
        config, wanted = (
            config_of(target, write(one, tmp_path / "draft"), options=options) for one in (draft, plain)
        )
        for key in wanted.keys() - {"model"}:  # the config as it was published
            assert config[key] == wanted[key]


def test_nulls_of_a_block_are_no_keys(target, tmp_path):
    plain, draft = valid_draft("dflash"), valid_draft("dflash")
    draft.config |= dict.fromkeys(("is_neox_style", "use_aux_hidden_state", "logit_scale"))
    draft.config["dflash_config"] |= dict.fromkeys(("swa_window_size", "use_aux_hidden_state"))
    expected = config_of(target, write(plain, tmp_path / "draft"), method="dflash")
    assert config_of(target, write(draft, tmp_path / "draft"), method="dflash") == expected


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
    config = config_of(target, folder)
    assert config["dtype"] == "bfloat16"
    assert "max_position_embeddings" not in config or config["max_position_embeddings"]


def test_a_speculators_draft_needs_no_speculators_config(target, tmp_path):
    draft = valid_draft("speculators")
    draft.config["speculators_config"] = None
    draft.config[LAYER]["rope_theta"] = None
    assert config_of(target, write(draft, tmp_path / "draft"))["vocab_size"]


def takes(config_class, config):
    try:
        config_class.from_dict(dict(config))
    except Exception:  # noqa: BLE001 - whatever it says
        return False
    return True


@pytest.mark.parametrize("name", CLASSES)
def test_each_null_is_dropped_that_the_class_refuses_and_no_other(name):
    judged = getattr(transformers, name)
    config = {field.name: None for field in fields(judged) if field.name != "model_type"}
    built = []
    build_without_nulls(judged, config, lambda kept: built.append(kept) or judged.from_dict(kept))
    assert built
    for key in config:
        assert takes(judged, {key: None}) == (key in built[-1]), key


def test_a_null_of_no_field_is_dropped():
    config = dict.fromkeys(("to_dict", "update", "num_labels", "draft_vocab_size"))
    built = build_without_nulls(transformers.LlamaConfig, config, transformers.LlamaConfig.from_dict)
    assert "draft_vocab_size" not in built.to_dict()


@pytest.mark.parametrize(
    ("wrong", "words"), [({"use_cache": 0}, "use_cache"), ({"num_attention_heads": 3}, "multiple of")]
)
def test_nothing_else_is_dropped(wrong, words):
    config = {"attention_bias": None, **wrong}
    tried = []
    with pytest.raises(Exception, match=words):
        build_without_nulls(
            transformers.LlamaConfig, config,
            lambda kept: tried.append(kept) or transformers.LlamaConfig.from_dict(kept),
        )  # fmt: skip
    assert all(kept.items() >= wrong.items() for kept in tried)


def test_the_nulls_that_a_copy_leaves_out_are_those_of_the_classes():
    refused = {
        field.name
        for judged in (transformers.LlamaConfig, transformers.Qwen3Config)
        for field in fields(judged)
        if not takes(judged, {field.name: None})
    }
    needed = {name for name, field in DraftConfig.model_fields.items() if field.is_required()}
    assert refused - needed - {"head_dim"} == set(NOT_NULL) - {"auto_map", "rope_theta"}
