"""A verification that changes texts is told by a start and by `check`."""

from __future__ import annotations

import pytest

from tests.support.engine import TINY
from tests.unit.preflight.configs import speculative_config
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.preflight.offline.run import CheckRequest, run_check
from vllm_eagle_ext.preflight.other_texts import KEY, refuse_other_texts

SYNTHETIC = {KEY: "synthetic", "synthetic_acceptance_length": 2.0}
TARGET, DRAFT = TINY / "target", TINY / "postnorm"


@pytest.mark.parametrize(("keys", "count"), [(SYNTHETIC, 1), ({KEY: "standard"}, 0), ({}, 0)])
def test_a_start_and_check_warn(keys, count, vllm_log):
    speculative_config(TARGET, DRAFT, **keys)
    assert len(vllm_log.containing(KEY)) == count
    request = CheckRequest(
        draft=str(DRAFT), target=str(TARGET), k=4, platform="cpu", options={}, speculative=keys
    )
    result = run_check(request)
    warned = [f for f in result.inspection.findings if f.rule == "texts_stay_the_targets"]
    assert len(warned) == count
    assert result.exit_code == 0


def test_the_method_of_0_33_is_named_too():
    with pytest.raises(SpeculativeConfigError, match="accepts drafts that the target would reject"):
        refuse_other_texts("fly")
    for method in ("standard", "block", None):
        refuse_other_texts(method)
