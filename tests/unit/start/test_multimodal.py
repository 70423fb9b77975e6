"""Targets with images: refused where vLLM would fail after the weights, passed where it serves them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.checkpoints import write_target
from tests.support.described import changed, problems, tiny_config
from tests.support.drafts import inspect, valid_draft
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.start.rules.target import (
    class_with_images,
    classes_known_to_v1,
    images_are_known_to_v1,
)


def target(architecture, *, images=True, served_by=None, **hf_config):
    info = SimpleNamespace(architecture=served_by or architecture)
    return SimpleNamespace(
        architecture=architecture,
        architectures=[architecture],
        registry=SimpleNamespace(inspect_model_cls=lambda *_: (info, architecture)),
        is_multimodal_model=images,
        hf_config=SimpleNamespace(**hf_config),
    )


@pytest.fixture
def judged(tmp_path):
    """What the rule says of a target of vLLM's."""
    case = inspect(valid_draft("native"), tmp_path / "inspected").case

    def judge(model_config, runner="v1"):
        config = changed(tiny_config(), model_config=model_config, use_v2_model_runner=runner == "v2")
        return problems(images_are_known_to_v1, config, case)

    return judge


def test_a_target_whose_image_token_v1_cannot_find_is_refused_there(judged):
    unknown = target("Llama9ForConditionalGeneration", image_token_id=7)
    (problem,) = judged(unknown)
    assert "Llama9ForConditionalGeneration" in problem.field
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in problem.remedy
    assert images_are_known_to_v1.error is UnsupportedTargetError
    assert not judged(unknown, "v2")


@pytest.mark.parametrize("keys", [{"image_token_id": 7}, {"image_token_id": None}, {}], ids=str)
def test_the_remedy_gives_v1_the_token_that_the_config_states(keys, judged):
    (problem,) = judged(target("Llama9ForConditionalGeneration", **keys))
    override = """--hf-overrides '{"image_token_index": 7}'"""
    assert (override in problem.remedy) is (keys.get("image_token_id") == 7)
    named = keys | {"image_token_index": 7}  # as vLLM reads the override
    assert not judged(target("Llama9ForConditionalGeneration", **named))


def test_v1_goes_by_the_class_that_serves(judged):
    """It knows this architecture, but the class for any model of transformers serves it."""
    other = target("HunYuanVLForConditionalGeneration", served_by="TransformersMultiModalForCausalLM")
    assert [p.value for p in judged(other)] == ["TransformersMultiModalForCausalLM"]


def test_vllm_names_the_class_that_serves(tmp_path, monkeypatch):
    from vllm.config import ModelConfig
    from vllm.engine.arg_utils import EngineArgs

    folder = write_target(tmp_path / "target")
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True).create_model_config()
    around = SimpleNamespace(model_config=config)
    assert class_with_images(around) is None
    monkeypatch.setattr(ModelConfig, "is_multimodal_model", True)
    assert class_with_images(around) == "LlamaForCausalLM"


@pytest.mark.parametrize(
    "served",
    [
        target("LlavaForConditionalGeneration", image_token_index=7),
        target("LlamaForCausalLM", images=False),
        *(target(name) for name in classes_known_to_v1()),
        target("NemotronH_Super_Omni_Reasoning_V3", served_by="NemotronH_Nano_VL_V2"),
    ],
    ids=lambda config: config.architecture,
)
def test_others_pass(served, judged):
    assert not judged(served)


def test_vllms_source_names_what_v1_knows():
    """Of lists and of single names."""
    known = {"Qwen3VLForConditionalGeneration", "PixtralForConditionalGeneration"}
    assert known < set(classes_known_to_v1())
