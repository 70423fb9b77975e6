from __future__ import annotations

import ast
import importlib
import operator
import types

import pytest

from tests.contract import changes
from tests.contract.check import check, failures, installed_source
from tests.contract.surface import SURFACE, Name
from tests.contract.surface_described import DESCRIBED_CUDA
from vllm_eagle_ext import compat
from vllm_eagle_ext.start.rules.target import has_interface

pytestmark = pytest.mark.promise("vLLM has every name and behaviour that the package uses")

INSTALLED = [entry for entry in SURFACE if entry.holds_in(compat.vllm_version())]


@pytest.mark.parametrize("entry", INSTALLED, ids=lambda entry: entry.id)
def test_installed_source(entry):
    assert check(entry, lambda module: ast.parse(installed_source(module))) == []


IMPORTED = [entry for entry in INSTALLED if entry not in DESCRIBED_CUDA]


@pytest.mark.parametrize("entry", IMPORTED, ids=lambda entry: entry.id)
def test_importable(entry):
    assert any(is_importable(module, entry.name) for module in entry.modules)


def is_importable(module: str, name: str) -> bool:
    try:
        operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def test_reading_says_what_vllms_classes_say():
    """Of a few that import without a GPU: both ways round, and one whose interface is inherited."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.interfaces import supports_eagle3

    for architecture, has_states in (
        ("LlamaForCausalLM", True), ("MistralForCausalLM", True), ("Qwen3NextForCausalLM", True),
        ("TransformersForCausalLM", True), ("Qwen2VLForConditionalGeneration", False),
        ("LongcatFlashForCausalLM", False), ("StableLmForCausalLM", False), ("GemmaForCausalLM", False),
    ):  # fmt: skip
        entry = ModelRegistry.models[architecture]
        assert supports_eagle3(entry.load_model_cls()) is has_states, architecture
        assert has_interface(entry.class_name) is has_states, architecture


def test_a_changed_surface_is_named():
    changed = (
        "class EngineArgs:\n    def create_speculative_config(self, target):\n        return None\n"
    )
    entry = Name(
        "m", "EngineArgs.create_speculative_config", "why", parameters=("self",), contains=("x(",)
    )
    problems = check(entry, lambda module: ast.parse(changed))
    assert len(problems) == 2
    assert all("m:EngineArgs.create_speculative_config" in p for p in problems)
    assert check(Name("m", "Gone", "why"), lambda module: ast.parse(changed)) == [
        "m:Gone: no such name (why)"
    ]


def test_a_missing_module_is_named():
    def read(module: str) -> str:
        raise FileNotFoundError(module)

    asked = [entry for entry in SURFACE if entry.holds_in("0.32.0")]
    assert len(failures(read, "0.32.0")) == len(asked) >= len(SURFACE) - 1


def test_a_parameter_that_became_necessary_is_named():
    entry = Name("m", "f", "why", optional=True)
    for text, problems in (
        ("def f(x=1, *, y=2): ...", 0),
        ("def f(x): ...", 1),
        ("def f(*, y): ...", 1),
    ):
        assert len(check(entry, lambda _, text=text: ast.parse(text))) == problems


def test_preflight_is_still_needed():
    """REMOVE WHEN this fails: V2 reads nested ids, and V1 knows which convention they are in."""
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    hf_config = types.SimpleNamespace(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5]})
    config = types.SimpleNamespace(draft_model_config=types.SimpleNamespace(hf_config=hf_config))
    assert get_eagle3_aux_layers_from_config(config) is None
    v1_runner = object.__new__(GPUModelRunner)
    v1_runner.speculative_config = config
    assert v1_runner._get_eagle3_aux_layers_from_config() == (1, 3, 5)


def test_each_fault_names_a_place_that_is_there():
    gone = [
        f"{fault}: {module}:{'.'.join(path)}"
        for fault, places in changes.faults().items()
        for module, path in places
        if module.startswith("vllm.") and changes.text_of(installed_source, module, path) is None
    ]
    assert gone == []
    assert [fault for fault, places in changes.faults().items() if not places] == []


@pytest.mark.long
def test_what_another_release_changes_is_said():
    def changed(module):
        source = installed_source(module)
        if module == "vllm.config.speculative":
            source = source.replace("    parallel_drafting: bool", "    drafting_in_parallel: bool")
            return source.replace("def use_eagle_block_drop", "def drops_a_block")
        return source

    assert list(changes.changed_fields(installed_source, changed)) == [
        "SpeculativeConfig: new drafting_in_parallel", "SpeculativeConfig: gone parallel_drafting",
    ]  # fmt: skip
    assert list(changes.faults_to_look_at(installed_source, installed_source)) == []
    (fault,) = changes.faults_to_look_at(installed_source, changed)
    assert fault.startswith("dflash_block_dropped: ")
    assert fault.endswith("use_eagle_block_drop has gone")
