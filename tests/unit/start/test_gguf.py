"""A draft in a GGUF file: left to vLLM's plugin for them where it is active, else refused.

The plugin is represented by its entry point, which is all that is looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import draft_config, write_draft, write_target
from tests.support.described import inspected
from tests.unit.start.configs import engine_args
from vllm_eagle_ext.errors import GgufDraftError, UnsupportedDraftError
from vllm_eagle_ext.start.check import CheckRequest, run_check

ENTRY = "[vllm.general_plugins]\ngguf = vllm_gguf_plugin:register\n"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    metadata = tmp_path / "site/vllm_gguf_plugin-0.0.5.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-gguf-plugin\nVersion: 0.0.5\n")
    (metadata / "entry_points.txt").write_text(ENTRY)
    monkeypatch.syspath_prepend(str(metadata.parent))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)


@pytest.fixture(params=["file", "folder"])
def draft(request, tmp_path):
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "draft-Q8_0.gguf").write_bytes(b"GGUF")
    if request.param == "file":
        return folder / "draft-Q8_0.gguf"
    return write_draft(folder, draft_config(num_aux=3, post_norm=True), None)


def start(target, draft, **options):
    return inspected(engine_args(target, draft, options=options))


def test_it_is_left_to_the_plugin(plugin, draft, target, vllm_log):
    assert start(target, draft) is None
    assert vllm_log.containing("not checked; left to vllm-gguf-plugin")
    assert "vllm_gguf_plugin" not in sys.modules


@pytest.mark.parametrize("place", ["owner/draft", "folder"])
def test_names_of_the_plugins_are(plugin, place, target, tmp_path):
    name = place if "/" in place else str(tmp_path / place)
    assert start(target, f"{name}:Q4_K_M") is None


def test_check_says_that_a_start_does_not_check_it(plugin, draft, target):
    request = CheckRequest(draft=str(draft), target=str(target), platform="cpu", options={})
    with pytest.raises(GgufDraftError, match="a start leaves it to vllm-gguf-plugin, unchecked"):
        run_check(request)


@pytest.mark.parametrize("plugins", [None, "vllm_eagle_ext"])
def test_without_the_plugin_it_is_refused(plugins, draft, target, monkeypatch, request):
    if plugins is not None:  # installed, but vLLM is told to leave it out
        request.getfixturevalue("plugin")
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    with pytest.raises(UnsupportedDraftError, match="vllm-gguf-plugin is not active"):
        start(target, draft)


def test_a_folder_with_a_colon_in_its_name_is_a_folder(plugin, target, tmp_path):
    folder: Path = write_target(tmp_path / "draft:v2")
    with pytest.raises(UnsupportedDraftError) as refused:
        start(target, folder)
    assert not isinstance(refused.value, GgufDraftError)
