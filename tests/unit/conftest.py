from __future__ import annotations

import pytest

from tests.support import process_group, warm_child
from vllm_eagle_ext.start import dry


@pytest.fixture(scope="session")
def single_process_group(tmp_path_factory):
    with process_group.single_process_group(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_children():
    """Of dry starts, ended with the tests."""
    yield
    warm_child.close_all()


@pytest.fixture(autouse=True)
def _asked_warmly(monkeypatch):
    """`vllm-eagle check` in this process asks a warm child; a test of the child itself undoes it."""
    monkeypatch.setattr(dry, "start_child", warm_child.start_warmly)
