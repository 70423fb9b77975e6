"""The share of a CPU's memory that an engine is given."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from vllm_eagle_ext.measure.engine import machine
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.machine import with_memory
from vllm_eagle_ext.measure.prompts import PromptSet
from vllm_eagle_ext.measure.verify.request import VerifyRequest
from vllm_eagle_ext.measure.verify.run import fitted
from vllm_eagle_ext.start.check import CheckRequest

GIB = 1 << 30


def node(total: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(total_memory=total * GIB, available_memory=free * GIB)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    memory_nodes = [node(64, 60)]
    monkeypatch.setattr(machine, "nodes", lambda: memory_nodes)
    return memory_nodes


def files_of(folder, size: int) -> list[str]:
    """Files of this size that take no room."""
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return [str(folder)]


@pytest.mark.parametrize("free", [60, 30, 12, 4, 2])
@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize("weights", [None, 0, 8])
def test_what_is_asked_for_is_free(on_cpu, tmp_path, free, engines, weights):
    """vLLM refuses to start where total x share exceeds what is free."""
    on_cpu[:] = [node(64, free)]
    models = ["org/a"] if weights is None else files_of(tmp_path, weights * GIB)
    most = 0.8 * (free - engines + 1)
    if most / engines < 1.5 + (weights or 0) / 2:
        with pytest.raises(EngineFailedError, match=f"{free:.1f} of 64.0 GiB.*gpu_memory_utilization"):
            with_memory({}, models, engines=engines)
        return
    arguments, _ = with_memory({}, models, engines=engines)
    share = arguments["gpu_memory_utilization"]
    assert 64 * share * engines <= most
    assert share >= 0.01


@pytest.mark.parametrize(
    ("memory", "weights", "share"),
    [
        (
            (64, 60),
            10**8,
            0.06,
        ),  # an engine writes what it gets before it starts
        ((1024, 900), 10**8, 0.01),
        ((64, 60), 12 * GIB, 0.5),  # what they need, and a cache of their size
        ((64, 60), 30 * GIB, 0.75),
    ],
)
def test_a_share_follows_the_weights(on_cpu, tmp_path, memory, weights, share):
    on_cpu[:] = [node(*memory)]
    assert with_memory({}, files_of(tmp_path, weights))[0] == {"gpu_memory_utilization": share}


def test_the_choice_is_passed_on_and_said(on_cpu):
    """The fullest node decides."""
    on_cpu.append(node(64, 30))
    arguments, line = with_memory({"max_model_len": 64}, ["org/a-repository"])
    assert arguments == {"max_model_len": 64, "gpu_memory_utilization": 0.37}
    assert "as 30.0 of 64.0 GiB are free: gpu_memory_utilization 0.37, unless --engine sets it" in line


@pytest.mark.parametrize(
    ("given", "space"),
    [({"gpu_memory_utilization": 0.9}, ""), ({"kv_cache_memory_bytes": GIB}, ""), ({}, "1")],
)
def test_what_the_user_gave_stays(on_cpu, monkeypatch, given, space):
    """With a cache space in its environment vLLM asks for no share."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", space)
    assert with_memory(given, ["org/a"]) == (given, None)


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
    """Each engine has two processes next to its worker: five of 4 GiB on 24 GiB were ended once."""
    on_cpu[:] = [node(64, 60)] * count
    arguments, _ = with_memory(engine, ["org/a"], engines=engines)
    assert arguments["gpu_memory_utilization"] == expected


def test_nodes_are_those_that_vllm_reads():
    from vllm.platforms import current_platform

    nodes = machine.nodes()
    assert bool(nodes) == current_platform.is_cpu()
    assert all(0 < info.available_memory <= info.total_memory for info in nodes)


@pytest.mark.parametrize("given", [{}, {"gpu_memory_utilization": 0.2}])
def test_verify_says_and_keeps_its_share(on_cpu, given):
    """In its settings, which are part of its report."""
    titles = []

    @contextmanager
    def stage(title, total):
        titles.append(title)
        yield lambda done: None

    check = CheckRequest(draft="org/draft", target="org/target", k=3, options={})
    request = VerifyRequest(check=check, engine=given, prompts=PromptSet("built-in", [], False, None))
    share = fitted(request, stage).engine["gpu_memory_utilization"]
    assert share == given.get("gpu_memory_utilization", 0.75)
    assert [title[:7] for title in titles] == ["Memory:"] * (not given)
