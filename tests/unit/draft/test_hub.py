"""A draft on the hub, read by byte ranges. In a fresh process each: the hub's library reads its
settings once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from tests.support.checkpoints import draft_config, draft_tensors, tiny_draft, write_draft
from tests.support.hub import COMMIT, serve_hub
from tests.support.layouts import halves, in_hub_cache, write_shards
from vllm_eagle_ext.draft import read_draft_files

REPOSITORY = "owner/draft"
READ = """
import json, sys
from dataclasses import asdict
from vllm_eagle_ext.draft import read_config, read_draft_files
from vllm_eagle_ext.errors import UnsupportedDraftError

model, options = sys.argv[1], json.loads(sys.argv[2])
try:
    files = read_draft_files(model, **options)
    doc = {
        "config": files.config,
        "weights": files.weights,
        "tensors": {name: asdict(header) for name, header in files.tensors.items()},
        "values": {name: raw.hex() for name, raw in files.values.items()},
        "folder": files.folder and str(files.folder),
    }
except UnsupportedDraftError as error:
    doc = {"error": str(error)}
modules = [name for name in ("torch", "vllm", "transformers") if name in sys.modules]
print(json.dumps({"modules": modules, **doc}))
"""


@pytest.fixture
def read(tmp_path):
    """Reads a draft in a fresh process that knows no hub but the given one."""

    def run(url, model=REPOSITORY, *, offline=False, **options):
        environment = {
            "PATH": os.environ["PATH"],
            "HF_ENDPOINT": url,
            "HF_HUB_OFFLINE": str(int(offline)),
            "HF_HOME": str(tmp_path / "home"),
        }
        result = subprocess.run(
            [sys.executable, "-c", READ, model, json.dumps(options)],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture
def hub(tmp_path):
    with serve_hub(REPOSITORY, tiny_draft(tmp_path / "draft", num_aux=5)) as hub:
        yield hub


def as_read_locally(folder):
    files = read_draft_files(str(folder))
    return {
        "config": files.config,
        "weights": files.weights,
        "tensors": {
            name: {**asdict(header), "shape": list(header.shape)}
            for name, header in files.tensors.items()
        },
        "values": {name: files.values[name].hex() for name in ("d2t", "t2d")},
        "folder": None,
        "modules": [],
    }


def test_same_content_as_the_folder(hub, read):
    assert read(hub.url) == as_read_locally(hub.folder)


def test_shards(tmp_path, read):
    folder = write_shards(tmp_path / "shards", halves())
    with serve_hub(REPOSITORY, folder) as hub:
        assert read(hub.url) == as_read_locally(folder)


def test_pickled_weights_are_not_fetched(hub, read):
    (hub.folder / "model.safetensors").rename(hub.folder / "pytorch_model.bin")
    assert read(hub.url)["weights"] == "bin"
    assert hub.requests_for("config.json")
    assert not hub.requests_for("pytorch_model.bin")


def test_large_tensors_are_not_fetched(tmp_path, read):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    tensors["embed_tokens.weight"] = torch.zeros(10_000, 1000, dtype=torch.bfloat16)
    folder = write_draft(tmp_path / "draft", draft_config(num_aux=3, post_norm=True), tensors)
    assert (folder / "model.safetensors").stat().st_size > 20_000_000
    with serve_hub(REPOSITORY, folder) as hub:
        assert read(hub.url)["tensors"]["embed_tokens.weight"]["size"] == 20_000_000
    served = hub.requests_for("model.safetensors")
    assert all(request.range for request in served)
    assert sum(request.sent for request in served) < 10_000
    assert not list((tmp_path / "home").rglob("*.safetensors")), "nothing is kept"


@pytest.mark.parametrize("token", [None, "hf_secret"])
def test_token(hub, read, token):
    read(hub.url, token=token)
    about_the_draft = hub.requests_for(REPOSITORY)
    assert len(about_the_draft) >= 4
    assert {each.authorization for each in about_the_draft} == {token and f"Bearer {token}"}


@pytest.mark.parametrize("revision", ["v1.0", COMMIT, "feature/short-name", "refs/pr/3"])
def test_revision(hub, read, revision):
    assert read(hub.url, revision=revision) == as_read_locally(hub.folder)
    about_the_draft = hub.requests_for(REPOSITORY)
    assert len(about_the_draft) >= 4
    assert all(f"/{revision}" in request.path for request in about_the_draft)


@pytest.mark.parametrize("status", [401, 404])
def test_repository_that_is_hidden_or_absent(hub, read, status):
    hub.refusals["/api/models"] = status, "RepoNotFound"
    error = read(hub.url)["error"]
    assert "speculative_config.model is 'owner/draft'" in error
    assert "the hub said: owner/draft (repository not found)" in error


def test_revision_that_is_absent(hub, read):
    hub.refusals["/api/models/owner/draft/revision"] = 404, "RevisionNotFound"
    assert "(revision not found)" in read(hub.url, revision="v9")["error"]


def test_repository_whose_files_are_gated(hub, read):
    hub.refusals[f"/{REPOSITORY}/resolve"] = 403, "GatedRepo"
    error = read(hub.url)["error"]
    assert "config.json of 'owner/draft' is 'unreadable'" in error
    assert "Cannot access gated repo" in error


@pytest.mark.parametrize("status", [403, 302])
def test_weights_that_cannot_be_had(hub, read, status):
    """A refusal, and an error of the transport."""
    hub.refusals["/elsewhere/model.safetensors"] = status, ""
    assert "model.safetensors of 'owner/draft' is 'unreadable'" in read(hub.url)["error"]


def test_repository_without_a_config(hub, read):
    (hub.folder / "config.json").unlink()
    assert "a folder or repository with a config.json" in read(hub.url)["error"]


def test_hostile_repository(hub, read):
    """The bounds hold on this path too."""
    (hub.folder / "model.safetensors").write_bytes((2**63).to_bytes(8, "little"))
    assert "its header claims 9223372036854775808 bytes" in read(hub.url)["error"]


@pytest.fixture
def dead_url(tmp_path):
    with serve_hub(REPOSITORY, tmp_path) as hub:
        return hub.url


def test_hub_that_is_down_and_a_draft_in_the_cache(tmp_path, read, dead_url):
    snapshot = in_hub_cache(tmp_path / "cache", tiny_draft(tmp_path / "draft"))
    doc = read(dead_url, download_dir=str(tmp_path / "cache"))
    assert doc["folder"] == str(snapshot)
    assert "fc.weight" in doc["tensors"]


def test_hub_that_is_down(tmp_path, read, dead_url):
    error = read(dead_url, download_dir=str(tmp_path / "cache"))["error"]
    assert "not in the cache, and the hub said: " in error
    assert "Connection refused" in error


def test_hub_that_has_not_what_the_cache_has(tmp_path, hub, read):
    hub.refusals["/api/models"] = 404, "RepoNotFound"
    snapshot = in_hub_cache(tmp_path / "cache", hub.folder)
    assert read(hub.url, download_dir=str(tmp_path / "cache"))["folder"] == str(snapshot)


def test_hub_that_is_switched_off(tmp_path, hub, read):
    snapshot = in_hub_cache(tmp_path / "cache", hub.folder)
    doc = read(hub.url, offline=True, download_dir=str(tmp_path / "cache"))
    assert doc["folder"] == str(snapshot)
    assert "switched off by HF_HUB_OFFLINE" in read(hub.url, offline=True)["error"]
    assert hub.requests == []


@pytest.fixture
def nested(tmp_path):
    """A repository of a target, with its draft in a folder."""
    tiny_draft(tmp_path / "repository/draft", num_aux=5)
    (tmp_path / "repository/config.json").write_text("{}")
    with serve_hub(REPOSITORY, tmp_path / "repository") as hub:
        yield hub


@pytest.mark.parametrize("revision", [None, "v1.0"])
def test_folder_of_a_repository(nested, read, revision):
    doc = read(nested.url, model=f"{REPOSITORY}/draft", subfolders=True, revision=revision)
    assert doc == as_read_locally(nested.folder / "draft")
    assert nested.requests_for(f"/resolve/{revision or 'main'}/draft/config.json")


def test_folder_that_a_repository_lacks(nested, read):
    nested.refusals[f"/api/models/{REPOSITORY}/tree/main/nothing"] = 404, "EntryNotFound"
    error = read(nested.url, model=f"{REPOSITORY}/nothing", subfolders=True)["error"]
    assert f"speculative_config.model is '{REPOSITORY}/nothing'" in error


def test_folder_of_a_repository_is_not_vllms(nested, read):
    error = read(nested.url, model=f"{REPOSITORY}/draft")["error"]
    assert "vLLM looks into no folder of a repository" in error
    assert "hf download owner/draft --include 'draft/*' --local-dir draft" in error
    assert nested.requests == []


@pytest.mark.parametrize("linked", [False, True])
def test_folder_of_a_repository_in_the_cache(tmp_path, nested, read, linked):
    """Its files link to the `blobs` of the repository, as the hub's library keeps them."""
    snapshot = in_hub_cache(tmp_path / "cache", nested.folder)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    for file in (snapshot / "draft").iterdir() if linked else ():
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)
    options = {"offline": True, "subfolders": True, "download_dir": str(tmp_path / "cache")}
    doc = read(nested.url, model=f"{REPOSITORY}/draft", **options)
    assert doc["folder"] == str(snapshot / "draft")
    assert "fc.weight" in doc["tensors"]
    error = read(nested.url, model=f"{REPOSITORY}/nothing", **options)["error"]
    assert "the cache has the repository without it" in error
    assert nested.requests == []


def test_revision_in_the_cache(tmp_path, hub, read):
    snapshot = in_hub_cache(tmp_path / "cache", hub.folder)
    (snapshot.parents[1] / "refs" / "v1.0").write_text(snapshot.name)
    options = {"offline": True, "download_dir": str(tmp_path / "cache")}
    for revision in ("v1.0", snapshot.name):
        assert read(hub.url, revision=revision, **options)["folder"] == str(snapshot)
    assert "not in the cache" in read(hub.url, revision="v2.0", **options)["error"]


def test_folder_wins_over_the_hub(hub, read):
    assert read(hub.url, model=str(hub.folder))["folder"] == str(hub.folder)
    assert hub.requests == []
