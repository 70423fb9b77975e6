"""What vLLM takes without a word and a check refuses, and nulls, which the rules read as no keys."""

from __future__ import annotations

import pytest

from tests.support.drafts import LAYER, inspect, valid_draft
from vllm_eagle_ext.draft import silent_keys

DTYPES = ["auto", "bfloat16", "double", "float", "float16", "fp16", "half", "torch.float32", 5]
NULLS = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "initializer_range", "hidden_act", "use_cache",
    "max_position_embeddings", "rope_theta", "auto_map", "rope_scaling.factor", "speculators_config",
)  # fmt: skip


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtypes_are_those_of_torch(key):
    from transformers import LlamaConfig

    for value in DTYPES:
        try:
            built = LlamaConfig.from_dict({key: value}).dtype != value
        except AttributeError:
            built = False
        assert built != bool([*silent_keys.mistaken({key: value})])


def test_the_class_has_a_method_of_the_name():
    from transformers import PreTrainedConfig

    assert callable(PreTrainedConfig.update)


@pytest.mark.parametrize("family", ["native", "mla", "dflash", "speculators"])
@pytest.mark.parametrize(
    ("key", "value", "edit"),
    [
        ("torch_dtype", "auto", "leave the key out"),
        ("torch_dtype", "torch.float16", 'write "torch_dtype": "float16", or leave the key out'),
        ("dtype", 5, "leave the key out"),
        ("n_predict", 3, "leave the key out"),
        ("num_labels", -1, "leave the key out"),
        ("num_labels", 2**30, "leave the key out"),
        ("update", 5, "remove the key"),
        ("attribute_map", {"rms_norm_eps": "initializer_range"}, "remove the key"),
        ("text_config", {}, "move its keys to the top of config.json"),
        ("compression_config", {}, 'rename the key to "quantization_config"'),
    ],
)
def test_refused_with_field_value_and_edit(tmp_path, family, key, value, edit):
    draft = valid_draft(family)
    draft.config.get(LAYER, draft.config)[key] = value
    (error,) = inspect(draft, tmp_path).errors
    assert error.rule == "config_is_well_formed"
    assert error.problem.field == f"{key} of the draft's config.json"
    assert error.problem.value == value
    assert error.problem.remedy.startswith(edit)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("draft_vocab_size", "96", 'write "draft_vocab_size": 96, or leave the key out'),
        ("hidden_size", "64", 'write "hidden_size": 64'),
        ("head_dim", 33, "correct the number, if the tensors have others; otherwise use another draft"),
        ("rms_norm_eps", 1, "write the value that the draft was trained with"),
        ("hidden_act", "gelu", "use another draft: no drafter of vLLM computes this activation"),
        ("eagle_config.norm_output", "x", "correct the value, or leave the key out"),
        ("tie_word_embeddings", "false", 'write "tie_word_embeddings": false, or leave the key out'),
    ],
)
def test_what_is_computed_with_is_told_with_an_edit_too(tmp_path, key, value, remedy):
    draft = valid_draft("native")
    block, _, inner = key.rpartition(".")
    (draft.config[block] if block else draft.config)[inner] = value
    (error,) = inspect(draft, tmp_path).errors
    assert error.problem.remedy == remedy


@pytest.mark.parametrize(("key", "value"), [("architectures", 1), ("architectures", [1]), (LAYER, None)])
def test_a_speculators_draft_of_no_class_or_layer(tmp_path, key, value):
    draft = valid_draft("p-eagle")
    draft.config = {**draft.config[LAYER], **draft.config, key: value}
    (error,) = inspect(draft, tmp_path).errors
    assert error.problem.field == f"{key} of the draft's config.json"


@pytest.mark.parametrize("family", ["native", "mla", "qwen3", "speculators"])
def test_a_null_is_read_as_no_such_key(tmp_path, family):
    reads = []
    for value in ({}, dict.fromkeys(NULLS)):
        draft = valid_draft(family)
        config = draft.config.get(LAYER, draft.config)
        for key in NULLS:
            config.pop(key, None)
        if value:
            config |= {key: None for key in NULLS if "." not in key} | {"rope_scaling": {"factor": None}}
        inspection = inspect(draft, tmp_path / str(len(reads)))
        fired = [(f.rule, f.problem.field, f.problem.value) for f in inspection.findings]
        reads.append(
            (fired, str(inspection.spec.rope), inspection.spec.layers, inspection.spec.trained_length)
        )
    assert reads[0] == reads[1]
