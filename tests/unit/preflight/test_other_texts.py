"""What changes texts is told at a start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.described import changed, problems, tiny_config
from tests.support.drafts import inspect, valid_draft
from tests.support.engine import TINY
from tests.unit.preflight.configs import speculative_config
from vllm_eagle_ext.engine_rules.speculative import adapters_meet_their_rows, texts_stay_the_targets

KEY = "rejection_sample_method"
SYNTHETIC = {KEY: "synthetic", "synthetic_acceptance_length": 2.0}


@pytest.mark.parametrize(("keys", "count"), [(SYNTHETIC, 1), ({KEY: "standard"}, 0), ({}, 0)])
def test_a_start_warns(keys, count, vllm_log):
    speculative_config(TINY / "target", TINY / "postnorm", **keys)
    assert len(vllm_log.containing(KEY)) == count


@pytest.mark.parametrize(("method", "count"), [("fly", 1), ("standard", 0), ("block", 0), (None, 0)])
def test_the_method_of_0_33_is_named_too(method, count, tmp_path):
    config = changed(tiny_config(), speculative_config__rejection_sample_method=method)
    found = problems(texts_stay_the_targets, config, inspect(valid_draft("native"), tmp_path).case)
    assert [problem.value for problem in found] == [method] * count


@pytest.mark.parametrize(
    ("modules", "runs_v2", "count"),
    [
        ({"target_modules": None}, True, 1),
        ({"target_modules": ["q_proj", "lm_head"]}, True, 1),
        ({"target_modules": ["q_proj"]}, True, 0),
        ({"target_modules": None}, False, 0),
        (None, True, 0),
    ],
)
def test_adapters_of_the_output_layer_on_v2(modules, runs_v2, count, tmp_path):
    adapters = modules and SimpleNamespace(**modules)
    config = changed(tiny_config(), lora_config=adapters, use_v2_model_runner=runs_v2)
    case = inspect(valid_draft("native"), tmp_path).case
    assert len(problems(adapters_meet_their_rows, config, case)) == count
