"""Experts divided among two ranks: our drafter loads beside them, on each rank.

Loaded, not run: vLLM 0.32's CPU kernel for experts ignores which of them a rank has, and its worker dies
at the first step.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.batches import Batch, Engine, start_engines
from tests.support.random_targets import RANDOM_ENGINE
from tests.support.targets.drafts import write_draft
from tests.support.targets.models import write_target

pytestmark = [pytest.mark.e2e, pytest.mark.long]

AUX_LAYERS = 5


def test_a_draft_loads_beside_divided_experts(tmp_path):
    target = write_target("qwen3-moe", tmp_path / "target", torch.float32)
    path, draft = write_draft("gated", AUX_LAYERS, tmp_path / "draft")
    speculative = {"method": draft.method, "model": str(path), "num_speculative_tokens": draft.k}
    divided = RANDOM_ENGINE | {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    engine = Engine("divided", [Batch("nothing")], speculative, divided, target=target)
    results, log = start_engines([engine], VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert "Local/global number of experts: 2/4" in log
    workers = results["divided"]["nothing"]["workers"]
    assert len(workers) == 2
    for worker in workers:
        assert worker["drafter"] == "Eagle3EagleExtLlamaForCausalLM"
        assert len(worker["layer_ids"]) == AUX_LAYERS
