"""A family that is added as CONTRIBUTING's recipe says: everything derives from its record."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import resolve_name

import pytest
import torch

from tests.drafts_page import architectures, tables
from tests.support.checkpoints import HIDDEN
from tests.support.drafting import load
from tests.support.drafts import inspect, valid_draft
from tests.support.engine import has_gpu
from tests.support.toy_family.family import SCALE, TOY
from vllm_eagle_ext import plugin
from vllm_eagle_ext.draft import registry
from vllm_eagle_ext.families import drafter_classes

(DRAFTER,) = TOY.drafters


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """Its folder lies among the package's, and is in FOLDERS."""
    for part in ("", ".names", ".family"):
        module = import_module(f"tests.support.toy_family{part}")
        monkeypatch.setitem(sys.modules, f"vllm_eagle_ext.families.toy_family{part}", module)
    for module in (registry, drafter_classes):
        monkeypatch.setattr(module, "FOLDERS", (*drafter_classes.FOLDERS, "toy_family"))
    _forget()
    yield
    _forget()


def _forget():
    registry.families.cache_clear()
    drafter_classes.drafters.cache_clear()


@pytest.fixture
def draft():
    draft = valid_draft("native")
    draft.config |= {"architectures": ["Eagle3ToyForCausalLM"], SCALE: 0.5}
    draft.tensors["feature_norm.weight"] = torch.ones(HIDDEN)
    return draft


def test_a_valid_draft_is_found(draft, tmp_path):
    inspection = inspect(draft, tmp_path)
    assert inspection.findings == ()
    spec = inspection.spec
    assert (spec.family, spec.title, spec.drafter) == (TOY, "toy EAGLE-3", DRAFTER)
    assert spec.aux_layers.layer_ids == (2, 3, 4)
    table = inspection.case.expected
    assert table["feature_norm.weight"].shape == (HIDDEN,)


@pytest.mark.parametrize("value", [None, -1.0])
def test_its_rule_refuses(draft, tmp_path, value):
    draft.config[SCALE] = value
    (error,) = inspect(draft, tmp_path).errors
    assert error.rule == "feature_scale_is_positive"
    assert "|`feature_scale_is_positive`|`feature_scale` is a number above 0.|" in tables()["error"]
    problem = error.problem
    assert problem.field == f"{SCALE} of the draft's config.json"
    assert (problem.value, problem.allowed) == (value, "a number above 0")
    assert "published with the draft" in problem.remedy


def test_its_tensors_are_asked_for(draft, tmp_path):
    del draft.tensors["feature_norm.weight"]
    (error,) = inspect(draft, tmp_path).errors
    assert error.rule == "tensors_are_complete"
    assert "feature_norm.weight" in str(error.problem)


def test_the_rules_of_its_parent_hold(draft, tmp_path):
    draft.config["is_causal"] = False
    assert [error.rule for error in inspect(draft, tmp_path).errors] == ["eagle3_is_causal"]


def test_its_key_is_refused_elsewhere(tmp_path):
    draft = valid_draft("native")
    draft.config[SCALE] = 0.5
    (error,) = inspect(draft, tmp_path).errors
    assert (error.rule, error.problem.value) == ("keys_are_computed", 0.5)


def test_its_class_is_registered(monkeypatch):
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
    from vllm.model_executor.models.registry import ModelRegistry

    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    plugin._register_models()
    assert DRAFTER.architecture in ModelRegistry.get_supported_archs()
    cls = resolve_name(plugin.registered_drafters()[DRAFTER.architecture])
    assert issubclass(cls, Eagle3LlamaForCausalLM)


def test_it_is_loaded_and_computes(draft, tmp_path, monkeypatch, single_process_group):
    """The drafter class, as vLLM loads it."""
    if has_gpu():
        pytest.skip("builds vLLM's layers on its CPU platform")
    from vllm.model_executor.models.registry import ModelRegistry

    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    draft.tensors["feature_norm.weight"] *= 3
    drafter, layer_ids, _, probe = load(tmp_path, draft)
    assert type(drafter).__name__ == DRAFTER.architecture
    states = torch.cat(probe.aux(layer_ids), dim=-1)  # [T, n * Ht]
    fused = drafter.combine_hidden_states(states)
    assert fused.pow(2).mean(-1).sqrt() == pytest.approx(1.5 * torch.ones(len(states)), rel=1e-3)


def test_reading_its_record_imports_no_model():
    code = (
        "import sys, tests.support.toy_family.family as toy\n"
        "assert toy.TOY.drafters\n"
        "assert not {'torch', 'vllm', 'tests.support.toy_family.model'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_its_row_is_in_the_documents():
    (row,) = (row for row in architectures() if DRAFTER.architecture in row)
    assert "|toy EAGLE-3|`eagle3`|`Eagle3ToyForCausalLM`|" in row
