"""A verification that changes texts is told by a start and by `check`."""

from __future__ import annotations

import pytest

from tests.support.described import problems
from tests.support.drafts import inspect, valid_draft
from tests.support.engine import TINY
from tests.unit.preflight.configs import speculative_config
from vllm_eagle_ext.engine_rules.speculative import texts_stay_the_targets
from vllm_eagle_ext.engine_rules.speculative_keys import SAMPLING as KEY
from vllm_eagle_ext.preflight.check import CheckRequest, run_check

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


@pytest.mark.parametrize(("method", "count"), [("fly", 1), ("standard", 0), ("block", 0), (None, 0)])
def test_the_method_of_0_33_is_named_too(method, count, tmp_path):
    case = inspect(valid_draft("native"), tmp_path).case
    found = problems(texts_stay_the_targets, case, speculative={KEY: method})
    assert [one.value for one in found] == [method] * count


@pytest.mark.parametrize(
    ("keywords", "platform", "count"),
    [
        ({"enable_lora": True}, "cuda", 1),
        ({"enable_lora": True, "lora_target_modules": ["q_proj", "lm_head"]}, "cuda", 1),
        ({"enable_lora": True, "lora_target_modules": ["q_proj"]}, "cuda", 0),
        ({"enable_lora": True}, "cpu", 0),
        ({}, "cuda", 0),
    ],
)
def test_adapters_of_the_output_layer_on_v2(keywords, platform, count):
    request = CheckRequest(
        draft=str(DRAFT), target=str(TARGET), k=4, platform=platform, options={}, engine=keywords
    )
    result = run_check(request)
    warned = [f for f in result.inspection.findings if f.rule == "adapters_meet_their_rows"]
    assert len(warned) == count
    assert result.exit_code == 0
