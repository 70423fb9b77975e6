"""What is said to be replaced and touched, against what a process finds changed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import ROOT, has_gpu
from vllm_eagle_ext import plugin
from vllm_eagle_ext.draft.registry import published
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS

MODELS = "vllm.model_executor.models.registry:ModelRegistry.models"
SOURCES = {
    path: ast.parse((ROOT / "vllm_eagle_ext" / path).read_text())
    for path in ("compat.py", "start/described.py")
}
SAID = {
    (path, node.name): docstring
    for path, tree in SOURCES.items()
    for node in ast.walk(tree)
    if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    and "REMOVE WHEN" in (docstring := ast.get_docstring(node) or "")
}
INSTALLED = {name: said for (path, name), said in SAID.items() if path == "compat.py"}
WHILE_BUILDING = "reading_configs"  # taken back once the draft's config is built


def touched_by(steps: str, tmp_path: Path) -> dict[str, list[str]]:
    result = tmp_path / "changed.json"
    subprocess.run(
        [sys.executable, "-m", "tests.support.touched_process", steps, str(result)],
        cwd=ROOT,
        check=True,
    )
    return json.loads(result.read_text())


def tables(diff: dict[str, list[str]]) -> set[str]:
    return {entry.partition("[")[0].removesuffix("._extra_content") for entry in diff["entries"]}


def seam_names(docstring: str) -> set[str]:
    """Names in code marks after "Seam:", without their arguments."""
    return set(re.findall(r"`([\w.]+)", docstring.partition("Seam:")[2].partition("REMOVE WHEN")[0]))


@pytest.mark.long
@pytest.mark.skipif(has_gpu(), reason="the workarounds of a CPU are not installed on a GPU")
def test_the_docstrings_name_all_that_changes(tmp_path):
    """Every attribute of every vLLM module and class, every entry of its tables, before and after all
    that the package installs in any process."""
    diff = touched_by("all", tmp_path)
    changed = {attribute.partition(":")[2] for attribute in diff["attributes"]}
    seams = {place: seam_names(said) & changed for place, said in INSTALLED.items()}
    assert set().union(*seams.values()) == changed
    assert {place for place, names in seams.items() if not names} == {WHILE_BUILDING}
    # Nothing else than models and configs has new entries, and the plugin's docstring names each table.
    assert tables(diff) == {
        MODELS,
        "transformers.models.auto.configuration_auto:CONFIG_MAPPING",
        "vllm.model_executor.models.config:MODELS_CONFIG_MAP",
    }
    assert all(table.partition(":")[2] in plugin.__doc__ for table in tables(diff))
    registered = [entry for entry in diff["entries"] if entry.startswith(MODELS)]
    # vLLM puts the method before a name that is not its own.
    names = {
        f"{MODELS}[{before + name!r}]" for name in published() for before in ("", "Eagle3", "DFlash")
    }
    assert {entry for entry in registered if "EagleExt" not in entry} <= names
    assert {f"{MODELS}[{ours!r}]" for ours in REPLAYING_TARGETS.values()} < set(registered)
    assert set(diff["instances"]) == {
        "ReplayGatedDeltaNetAttention.__class__",
        "ReplayGatedDeltaNetAttention._forward_method",
        "ReplayGatedDeltaNetAttention.enable_fused_gdn_spec_decode",
        "ReplayGatedDeltaNetAttention.replay_kernels",
    }


@pytest.mark.long
def test_without_a_draft_two_things_change(tmp_path):
    """What every process has: registered models, and the function that builds a SpeculativeConfig."""
    diff = touched_by("register", tmp_path)
    assert diff["attributes"] == [
        f"vllm.engine.arg_utils:EngineArgs.create_{made}_config" for made in ("engine", "speculative")
    ]
    assert tables(diff) == {MODELS}


@pytest.mark.parametrize(("path", "name"), SAID)
def test_each_replacement_says_why_and_until_when(path, name):
    parts = ("Symptom:", "Cause:", "Seam:") if path == "compat.py" else ("Symptom:",)
    assert all(part in SAID[path, name] for part in parts)
