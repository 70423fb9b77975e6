from __future__ import annotations

import pytest

from tests.support.checkpoints import write_target
from vllm_eagle_ext import plugin


@pytest.fixture(autouse=True)
def _registered():
    plugin.register()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))
