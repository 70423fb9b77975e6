"""The table of types, against the config classes of transformers, and what a check says."""

from __future__ import annotations

import pytest

from tests.support.drafts import inspect, valid_draft
from vllm_eagle_ext.checkpoint.typed_keys import TYPED_KEYS, mistyped

VALUES = [None, True, 0, 3, 0.5, "", "x", [], [3], [True], ["x"], [3.5], {}, {"0": "x"}]
NAMES = ["auto", "bfloat16", "float", "float16", "fp16", "torch.float32"]
LOOSER = {("Qwen3Config", "attention_dropout", "None")}  # refused by this class only


def is_built(config_class, key, value):
    try:
        config_class.from_dict({key: value})
    except Exception:  # noqa: BLE001
        return False
    return True


@pytest.mark.parametrize("name", ["LlamaConfig", "Qwen3Config", "DeepseekV3Config"])
def test_the_types_are_those_of_transformers(name):
    import transformers

    pairs = [(key, value) for key in TYPED_KEYS for value in VALUES]
    pairs += [(key, value) for key in ("dtype", "torch_dtype") for value in NAMES]
    config_class = getattr(transformers, name)
    differing = {
        (name, key, repr(value))
        for key, value in pairs
        if is_built(config_class, key, value) == bool(list(mistyped({key: value})))
    }
    assert differing <= LOOSER


@pytest.mark.parametrize("family", ["native", "mla", "dflash"])
@pytest.mark.parametrize(
    ("key", "value"), [("use_cache", None), ("initializer_range", 1), ("torch_dtype", "auto")]
)
def test_refused_with_field_value_and_types(tmp_path, family, key, value):
    draft = valid_draft(family)
    draft.config[key] = value
    (error,) = inspect(draft, tmp_path).errors
    assert error.problem.field == f"{key} of the draft's config.json"
    assert error.problem.value == ("null" if value is None else value)


def test_a_speculators_draft_is_built_without_them(tmp_path):
    draft = valid_draft("speculators")
    draft.config["transformer_layer_config"]["use_cache"] = None
    assert not inspect(draft, tmp_path).errors


def test_a_key_of_both_tables_is_told_once(tmp_path):
    draft = valid_draft("native")
    draft.config["tie_word_embeddings"] = "false"
    assert len(inspect(draft, tmp_path).errors) == 1
