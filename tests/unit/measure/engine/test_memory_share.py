"""The share of a CPU's memory that an engine is given."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from vllm_eagle_ext.measure.engine import machine
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.machine import Node, folder_bytes, share_of, with_memory
from vllm_eagle_ext.measure.prompts import PromptSet
from vllm_eagle_ext.measure.verify.request import VerifyRequest
from vllm_eagle_ext.measure.verify.run import fitted
from vllm_eagle_ext.start.check import CheckRequest

GIB = 1 << 30
LARGE = Node(64 * GIB, 60 * GIB)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    found = [LARGE]
    monkeypatch.setattr(machine, "nodes", lambda: found)
    return found


@pytest.mark.parametrize("free", [60, 30, 12, 4, 2])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("weights", [None, 0, 8])
def test_what_is_asked_for_is_free(free, workers, weights):
    """vLLM refuses to start where total x share exceeds what is free."""
    node = Node(64 * GIB, free * GIB)
    try:
        share = share_of(node, workers=workers, weights=None if weights is None else weights * GIB)
    except EngineFailedError:
        assert free / workers * 0.8 < 1.5 + (weights or 0) / 2
        return
    asked = share.utilization * node.total * workers
    assert asked <= 0.8 * node.free
    assert share.utilization >= 0.01


@pytest.mark.parametrize(
    ("node", "weights", "share"),
    [
        (LARGE, 10**8, 0.06),  # what an engine gets it writes before it starts: the rest is for others
        (Node(1024 * GIB, 900 * GIB), 10**8, 0.01),
        (LARGE, 12 * GIB, 0.5),  # what they need, and a cache of their size
        (LARGE, 30 * GIB, 0.75),
        (LARGE, None, 0.75),  # not here yet, so they may be large
    ],
)
def test_a_share_follows_the_weights(node, weights, share):
    assert share_of(node, weights=weights).utilization == pytest.approx(share)


@pytest.mark.parametrize(
    ("free", "workers", "weights"), [(1, 1, 0), (4, 3, 0), (12, 1, 20), (0, 1, None)]
)
def test_too_little_is_said_before_anything_starts(free, workers, weights):
    node = Node(64 * GIB, free * GIB)
    with pytest.raises(EngineFailedError, match="free memory of this machine") as refused:
        share_of(node, workers=workers, weights=None if weights is None else weights * GIB)
    assert f"{free:.1f} of 64.0 GiB" in str(refused.value.value)
    assert "gpu_memory_utilization" in refused.value.remedy


def test_the_choice_is_passed_on_and_said(on_cpu):
    engine, share = with_memory({"max_model_len": 64}, ["org/a-repository"])
    assert engine == {"max_model_len": 64, "gpu_memory_utilization": 0.75}
    assert str(share) == (
        "Memory: 48.0 GiB for each engine, as 60.0 of 64.0 GiB are free: gpu_memory_utilization 0.75, "
        "unless --engine sets it."
    )


@pytest.mark.parametrize("given", [{"gpu_memory_utilization": 0.9}, {"kv_cache_memory_bytes": GIB}])
def test_what_the_user_gave_stays(on_cpu, given):
    assert with_memory(given, ["org/a"]) == (given, None)


def test_a_cache_space_leaves_the_share_alone(on_cpu, monkeypatch):
    """vLLM then asks for that space and for no share."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert with_memory({}, ["org/a"]) == ({}, None)


def test_on_a_gpu_the_default_stays(on_cpu):
    on_cpu.clear()
    assert with_memory({}, ["org/a"]) == ({}, None)


@pytest.mark.parametrize(
    ("engine", "engines", "count", "expected"),
    [
        ({}, 3, 1, 0.24),  # less what their other processes take
        ({"tensor_parallel_size": 2}, 1, 1, 0.37),
        ({"tensor_parallel_size": 2}, 1, 2, 0.75),  # a node for each worker
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 1, 2, 0.37),
    ],
)
def test_workers_beside_each_other_share(on_cpu, engine, engines, count, expected):
    on_cpu[:] = [LARGE] * count
    assert with_memory(engine, ["org/a"], engines=engines)[1].utilization == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "space", "engines"),
    [
        ({"gpu_memory_utilization": 0.3}, "", 3),  # 57.6 GiB, and 2 of other processes: just fits
        ({"gpu_memory_utilization": 0.9}, "", 1),  # one engine's, which vLLM looks at
        ({"kv_cache_memory_bytes": 9 * GIB}, "", 5),
        ({}, "9", 5),
        ({"gpu_memory_utilization": "0.9"}, "", 9),  # for vLLM to refuse
        ({"gpu_memory_utilization": None}, "", 9),
        ({}, "much", 9),
    ],
)
def test_engines_beside_each_other_are_added_up(on_cpu, monkeypatch, given, space, engines):
    """The kernel would end one of them in mid-measurement."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", space)
    assert with_memory(given, ["org/a"], engines=engines) == (given, None)
    if engines in (3, 5):
        with pytest.raises(EngineFailedError, match="free memory of this machine") as refused:
            with_memory(given, ["org/a"], engines=engines + 1)
        assert f"for {engines + 1} workers that take" in refused.value.allowed


def test_engines_beside_each_other_leave_room_for_their_other_processes(on_cpu):
    """Each has two next to its worker: five of 4 GiB on 24 GiB were ended by the kernel."""
    node = Node(24 * GIB, 24 * GIB)
    on_cpu[:] = [node]
    share = with_memory({}, ["org/a"], engines=5)[1]
    assert 5 * share.utilization * node.total + 4 * GIB <= 0.8 * node.free + 0.8 * GIB


def test_the_fullest_node_decides(on_cpu):
    on_cpu.append(Node(64 * GIB, 30 * GIB))
    assert with_memory({}, ["org/a"])[1].node.free == 30 * GIB


def test_weights_are_those_of_the_files(tmp_path):
    for name, size in (("target", 100), ("draft", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(size))
    assert folder_bytes([str(tmp_path / "target"), str(tmp_path / "draft")]) == 120
    assert folder_bytes([str(tmp_path / "target"), "org/draft"]) is None


def test_nodes_are_those_that_vllm_reads():
    from vllm.platforms import current_platform

    found = machine.nodes()
    assert bool(found) == current_platform.is_cpu()
    assert all(0 < node.free <= node.total for node in found)


@pytest.mark.parametrize("given", [{}, {"gpu_memory_utilization": 0.2}])
def test_verify_says_and_keeps_its_share(on_cpu, given):
    """In its settings, which are part of its report."""
    said = []

    @contextmanager
    def stage(title, total):
        said.append(title)
        yield lambda done: None

    check = CheckRequest(draft="org/draft", target="org/target", k=3, options={})
    request = VerifyRequest(check=check, engine=given, prompts=PromptSet("built-in", [], False, None))
    share = fitted(request, stage).engine["gpu_memory_utilization"]
    assert share == given.get("gpu_memory_utilization", 0.75)
    assert [title[:7] for title in said] == ["Memory:"] * (not given)
