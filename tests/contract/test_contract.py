from __future__ import annotations

import ast
import importlib
import types

import pytest

from tests.contract.check import check, failures, installed_source
from tests.contract.surface import SURFACE, Name


@pytest.mark.parametrize("entry", SURFACE, ids=lambda entry: entry.id)
def test_installed_source(entry):
    assert check(entry, lambda module: ast.parse(installed_source(module))) == []


@pytest.mark.parametrize("entry", SURFACE, ids=lambda entry: entry.id)
def test_importable(entry):
    found = importlib.import_module(entry.module)
    for part in entry.name.split("."):
        found = getattr(found, part)


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

    assert len(failures(read)) == len(SURFACE)


def test_intake_is_still_needed():
    """REMOVE WHEN this fails: V2 reads nested ids, and V1 knows which convention they are in."""
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    hf_config = types.SimpleNamespace(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5]})
    config = types.SimpleNamespace(draft_model_config=types.SimpleNamespace(hf_config=hf_config))
    assert get_eagle3_aux_layers_from_config(config) is None
    v1_runner = object.__new__(GPUModelRunner)
    v1_runner.speculative_config = config
    assert v1_runner._get_eagle3_aux_layers_from_config() == (1, 3, 5)
