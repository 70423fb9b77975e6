from __future__ import annotations

import pytest

from tests.support.checkpoints import draft_config, draft_tensors, write_draft, write_target
from vllm_eagle_ext import plugin


@pytest.fixture(autouse=True)
def _registered():
    plugin.register()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def without_norms(tmp_path):
    """A draft whose config asks for norms that its weights lack."""
    tensors = draft_tensors(num_aux=3, post_norm=False)
    return write_draft(tmp_path / "draft", draft_config(num_aux=3, post_norm=True), tensors)
