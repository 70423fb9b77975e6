"""Experts divided among two ranks: our drafter loads beside them, on each rank."""

from __future__ import annotations

import pytest

from tests.support.engine import IN_PROCESS, TIMEOUT_S, engine_environment, run_child

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_a_draft_loads_beside_divided_experts():
    environment = engine_environment("v1") | IN_PROCESS | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    workers, log = run_child("expert_process", None, environment=environment, timeout_s=TIMEOUT_S)
    assert "Local/global number of experts: 2/4" in log
    assert len(workers) == 2
    for worker in workers:
        assert worker["drafter"] == "Eagle3EagleExtLlamaForCausalLM"
        assert len(worker["layer_ids"]) == 5
