"""`vllm-eagle plan` without --gpu-mem."""

from __future__ import annotations

import pytest

from tests.support.engine import has_gpu
from tests.unit.plan.inputs import GIB
from vllm_eagle_ext.plan.device import read_memory


def test_the_node_s_memory_is_what_vllm_counts():
    """On machines with one node; of several, vLLM binds each rank to one."""
    from vllm.utils.cpu_resource_utils import get_memory_node_info

    # A virtual machine's memory may grow or shrink between the two.
    assert read_memory(cpu=True).gib * GIB == pytest.approx(
        get_memory_node_info(0).total_memory, rel=0.2
    )


def test_it_is_planned_with_and_named(plan, said):
    options = ("-k", "3", "--cpu", "--no-prefix-caching", "--weights-gib", "0.5", "--reserve-gib", "0")
    found = said(*options)
    given = said(*options, "--gpu-mem", str(found["request"]["gpu_mem"]))
    assert given["kv_budget_bytes"] == found["kv_budget_bytes"] > 0
    assert "of this machine), less weights" in plan(*options).stdout


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="reads the memory of an NVIDIA GPU")
def test_the_gpu_s_memory_is_what_vllm_counts(said):
    import torch

    found = said("-k", "3")["request"]["gpu_mem"]
    assert found * GIB == pytest.approx(torch.cuda.mem_get_info()[1], rel=0.02)
