from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.drafts import Draft, inspect
from vllm_eagle_ext.draft import DraftSpec


@pytest.fixture
def spec_of(tmp_path) -> Callable[..., DraftSpec]:
    def build(draft: Draft, **options: Any) -> DraftSpec:
        inspection = inspect(draft, tmp_path, **options)
        assert inspection.spec, inspection.findings
        return inspection.spec

    return build
