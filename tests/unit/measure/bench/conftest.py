from __future__ import annotations

import pytest

from vllm_eagle_ext.measure.folder import Context


@pytest.fixture
def context() -> Context:
    return Context(
        command="vllm-eagle bench", started="2026-01-01", versions={}, device="", environment={}
    )
