"""The types that a draft's keys may have, against the classes of transformers, and what a check says."""

from __future__ import annotations

import inspect as python
from dataclasses import fields

import pytest

from tests.support.drafts import LAYER, inspect, valid_draft
from vllm_eagle_ext.checkpoint import class_types, draft_config
from vllm_eagle_ext.checkpoint.typed_keys import NEEDED, mistyped, without_nulls

VALUES = [True, 0, 1, 3, 0.5, 3.5, "", "x", [], [3], [True], ["x"], [3.5], [None], {}, {"0": "x"}]
NAMES = ["auto", "bfloat16", "float", "float16", "fp16", "torch.float32"]
CLASSES = {"LlamaConfig": "llama", "Qwen3Config": "qwen3", "DeepseekV3Config": "kimi_k2"}
OTHER_CLASSES = {"GptOssConfig": "gpt_oss", "Glm4MoeConfig": "glm4_moe", "MistralConfig": "mistral"}
# Settings of the class that a saved config may state, and a value with which vLLM goes on.
SETTINGS = {
    "attribute_map": {}, "has_no_defaults_at_init": False, "ignore_keys_at_rope_validation": ["x"],
    "per_layer_config": {}, "sub_configs": {},
}  # fmt: skip


@pytest.fixture
def without_transformers(monkeypatch):
    class_types._read_types.cache_clear()
    class_types.readable_model_types.cache_clear()
    monkeypatch.setattr(class_types, "find_spec", lambda name: None)
    yield
    class_types._read_types.cache_clear()
    class_types.readable_model_types.cache_clear()


def takes(config_class, key, value):
    try:
        for validate in config_class.__validators__[key]:
            validate(value)
    except (TypeError, ValueError):
        return False
    return True


def config_class(name):
    import transformers

    return getattr(transformers, name)


def test_the_table_is_of_the_transformers_that_is_installed():
    import transformers

    assert transformers.__version__ == class_types.TRANSFORMERS
    for name in class_types._TABLE:
        assert class_types.table_types(name) == class_types.class_types(name)


@pytest.mark.parametrize(("name", "model_type"), [*CLASSES.items(), *OTHER_CLASSES.items()])
def test_the_types_are_those_of_transformers(name, model_type):
    judged = config_class(name)
    declared = set(class_types.class_types(model_type))
    assert declared
    differing = {
        (key, repr(value))
        for key in declared - {"rope_parameters"}  # `rope_config.py` looks at its values
        for value in VALUES
        if takes(judged, key, value) == bool(list(mistyped({"model_type": model_type, key: value})))
    }
    # Some classes bound it.
    assert {key for key, _ in differing} <= {"initializer_range"}
    assert not {value for _, value in differing} - {"3.5"}


@pytest.mark.parametrize(("name", "model_type"), [*CLASSES.items(), *OTHER_CLASSES.items()])
def test_a_null_is_dropped_where_the_class_refuses_it(name, model_type):
    config = {"model_type": model_type, **dict.fromkeys(class_types.class_types(model_type))}
    kept = without_nulls(config)
    judged = config_class(name)
    for key in config.keys() - {"model_type"}:
        assert takes(judged, key, None) == (key in kept)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtypes_are_those_of_torch(key):
    for value in NAMES:
        refused = bool(list(mistyped({key: value})))
        try:
            config_class("LlamaConfig").from_dict({key: value})
        except AttributeError:
            assert refused
        else:
            assert not refused


def test_names_of_the_class_are_no_keys():
    base = config_class("PreTrainedConfig")
    stated = {field.name for field in fields(base)}
    found = set()
    for name in set(dir(base)) - stated - set(SETTINGS):
        held = python.getattr_static(base, name)
        is_read_only = isinstance(held, property) and held.fset is None
        is_method = callable(held) or isinstance(held, classmethod | staticmethod)
        if not name.startswith("__") and (is_read_only or is_method):
            found.add(name)
    assert found == class_types.OF_THE_CLASS


def test_settings_of_the_class_are_data(tmp_path):
    """A trainer's library that saves them breaks nothing."""
    base = config_class("PreTrainedConfig")
    assert not any(callable(python.getattr_static(base, name)) for name in SETTINGS)
    draft = valid_draft("native")
    draft.config |= SETTINGS
    assert not inspect(draft, tmp_path).errors


@pytest.mark.parametrize("name", ["attribute_map", "per_layer_config", "sub_configs"])
def test_a_setting_that_redirects_keys_is_refused(tmp_path, name):
    draft = valid_draft("native")
    draft.config[name] = {"hidden_size": "n_embd"}
    (error,) = inspect(draft, tmp_path).errors
    assert error.problem.field == f"{name} of the draft's config.json"
    assert error.problem.remedy == "remove the key"


@pytest.mark.parametrize(
    "name", ["has_no_defaults_at_init", "is_heterogeneous", "to_dict", "sub_configs"]
)
def test_the_root_of_a_speculators_config_shadows_nothing(tmp_path, name):
    draft = valid_draft("speculators")
    draft.config[name] = {"a": 1}
    assert not inspect(draft, tmp_path / "root").errors
    draft.config[LAYER][name] = draft.config.pop(name)
    errors = inspect(draft, tmp_path / "layer").errors
    assert [error.rule for error in errors] == ["config_is_well_formed"] * (name[0] != "h")


def test_model_types_are_those_that_vllm_can_read():
    from vllm_eagle_ext import architectures

    assert class_types.readable_model_types() == architectures.readable_model_types()


@pytest.mark.usefixtures("without_transformers")
def test_the_table_stands_for_transformers():
    assert class_types.readable_model_types() is None
    assert class_types.class_types("kimi_k2") == class_types.table_types("deepseek_v3")
    (problem,) = mistyped({"model_type": "qwen3", "use_cache": "false"})
    assert problem.remedy == 'write "use_cache": false, or leave the key out'


def test_the_needed_keys_are_those_that_are_read():
    found = {
        name for name, field in draft_config.DraftConfig.model_fields.items() if field.is_required()
    }
    assert found == NEEDED


@pytest.mark.parametrize("family", ["native", "mla", "dflash"])
@pytest.mark.parametrize(
    ("key", "value", "edit"),
    [
        ("use_cache", 0, 'write "use_cache": false, or leave the key out'),
        ("initializer_range", 0, 'write "initializer_range": 0.0, or leave the key out'),
        ("torch_dtype", "auto", "leave the key out"),
        ("torch_dtype", "torch.float16", 'write "torch_dtype": "float16", or leave the key out'),
        ("pad_token_id", "x", "leave the key out"),
        ("eos_token_id", "5", 'write "eos_token_id": 5, or leave the key out'),
        ("attention_bias", "False", 'write "attention_bias": false, or leave the key out'),
        ("hidden_size", "64", 'write "hidden_size": 64'),
        ("n_predict", 3, "leave the key out"),
        ("num_experts", "8", 'write "num_experts": 8, or leave the key out'),
        ("max_seq_len", [4096], 'write "max_seq_len": 4096, or leave the key out'),
        ("to_dict", 5, "remove the key"),
        ("compression_config", {}, 'rename the key to "quantization_config"'),
    ],
)
def test_refused_with_field_value_and_edit(tmp_path, family, key, value, edit):
    draft = valid_draft(family)
    draft.config[key] = value
    (error,) = inspect(draft, tmp_path).errors
    assert error.rule == "config_is_well_formed"
    assert error.problem.field == f"{key} of the draft's config.json"
    assert error.problem.value == value
    assert error.problem.remedy == edit


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("draft_vocab_size", "96", 'write "draft_vocab_size": 96, or leave the key out'),
        ("rms_norm_eps", 1, "write the value that the draft was trained with"),
        ("hidden_act", "gelu", "use another draft: no drafter of vLLM computes this activation"),
        ("eagle_config.norm_output", "x", "correct the value, or leave the key out"),
    ],
)
def test_what_is_computed_with_is_told_with_an_edit_too(tmp_path, key, value, remedy):
    draft = valid_draft("native")
    block, _, inner = key.rpartition(".")
    (draft.config[block] if block else draft.config)[inner] = value
    (error,) = inspect(draft, tmp_path).errors
    assert error.problem.remedy == remedy


@pytest.mark.parametrize(
    ("family", "changed", "field"),
    [
        ("native", {"num_attention_heads": 3}, "num_attention_heads"),
        ("native", {"head_dim": 33}, "head_dim"),
        ("mla", {"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
    ],
)
def test_numbers_that_transformers_takes_only_together(tmp_path, family, changed, field):
    draft = valid_draft(family)
    draft.config |= changed
    (error,) = inspect(draft, tmp_path).errors
    assert error.problem.field == f"{field} of the draft's config.json"
    with pytest.raises(Exception, match="multiple of the number|even rotary"):
        config_class("LlamaConfig" if family == "native" else "DeepseekV3Config").from_dict(draft.config)


def test_classes_that_demand_dividing_heads():
    found = {name for name in class_types._TABLE if class_types.demands_dividing_heads(name)}
    assert found == set(class_types._DIVIDING)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"speculators_model_type": 0.02}, "speculators_model_type"),
        ({"architectures": 1}, "architectures"),
        ({LAYER: {"output_attentions": True}}, f"{LAYER}.output_attentions"),
    ],
)
def test_a_speculators_config_that_vllm_cannot_read(tmp_path, changed, field):
    draft = valid_draft("p-eagle")
    draft.config |= changed | {LAYER: draft.config[LAYER] | changed.get(LAYER, {})}
    assert f"{field} of the draft's config.json" in {
        error.problem.field for error in inspect(draft, tmp_path).errors
    }


def test_a_speculators_draft_is_built_without_annotations(tmp_path):
    draft = valid_draft("speculators")
    draft.config[LAYER] |= {"use_cache": "x", "initializer_range": 1}
    assert not inspect(draft, tmp_path).errors


def test_a_key_of_both_tables_is_told_once(tmp_path):
    draft = valid_draft("native")
    draft.config["tie_word_embeddings"] = "false"
    assert len(inspect(draft, tmp_path).errors) == 1


NULLS = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "initializer_range", "hidden_act", "use_cache",
    "max_position_embeddings", "rope_theta", "auto_map", "rope_scaling.factor",
)  # fmt: skip


@pytest.mark.parametrize("family", ["native", "mla", "qwen3", "speculators"])
def test_a_null_is_read_as_no_such_key(tmp_path, family):
    """What is found, and what is computed, is the same."""
    found = []
    for value in ({}, dict.fromkeys(NULLS)):
        draft = valid_draft(family)
        config = draft.config.get(LAYER, draft.config)
        for key in NULLS:
            config.pop(key, None)
        if value:
            config |= {key: None for key in NULLS if "." not in key} | {"rope_scaling": {"factor": None}}
        inspection = inspect(draft, tmp_path / str(len(found)))
        told = [(f.rule, f.problem.field, f.problem.value) for f in inspection.findings]
        found.append(
            (told, str(inspection.spec.rope), inspection.spec.layers, inspection.spec.trained_length)
        )
    assert found[0] == found[1]
