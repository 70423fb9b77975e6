from __future__ import annotations

import pytest

from tests.support import process_group


@pytest.fixture(scope="session")
def single_process_group(tmp_path_factory):
    with process_group.single_process_group(tmp_path_factory.mktemp("group")):
        yield
