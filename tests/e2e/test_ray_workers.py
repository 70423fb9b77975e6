"""Ray's workers may run on another node, where our package is missing or of another version: the engine
must fail at start, with words that name the cause."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.engine import IN_PROCESS, ROOT, TIMEOUT_S, engine_environment, run_child
from tests.support.ray_cluster import RAY_CPU, RayCluster, ray_path
from vllm_eagle_ext import __version__

pytestmark = [pytest.mark.e2e, pytest.mark.long]

OTHER = "0.0.1"
MISSING = "raise ModuleNotFoundError(\"No module named 'vllm_eagle_ext'\")\n"


def python_path(*first) -> str:
    return os.pathsep.join(map(str, (*first, RAY_CPU, ROOT)))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What `LLM()` raised, by what its workers have installed."""
    folder = tmp_path_factory.mktemp("workers")
    shutil.copytree(ROOT / "vllm_eagle_ext", folder / "other/vllm_eagle_ext")
    file = folder / "other/vllm_eagle_ext/version.py"
    text = file.read_text()
    file.write_text(text.replace(f'__version__ = "{__version__}"', f'__version__ = "{OTHER}"'))
    assert file.read_text() != text
    missing = folder / "none/vllm_eagle_ext/__init__.py"
    missing.parent.mkdir(parents=True)
    missing.write_text(MISSING)
    workers = {
        "none": {"PYTHONPATH": python_path(folder / "none"), "VLLM_PLUGINS": "ray_cpu"},
        "other": {"PYTHONPATH": python_path(folder / "other")},
    }
    environment = ray_path(engine_environment("v1")) | IN_PROCESS
    with RayCluster(environment) as cluster:
        result, _ = run_child(
            "ray_workers_process",
            workers,
            environment=environment | cluster.environment,
            timeout_s=TIMEOUT_S,
        )
    return result


def test_a_worker_without_the_package_fails_with_a_name_that_tells(said):
    assert "Model architectures ['Eagle3EagleExtLlamaForCausalLM'] are not supported" in said["none"]


def test_another_version_on_a_worker_is_refused_with_both_versions(said):
    assert "RayTaskError(UnsupportedDraftError)" in said["other"]
    assert f"resolved the draft's config is '{__version__}'. Allowed: {OTHER}, " in said["other"]
    assert "install the same version on every node" in said["other"]
