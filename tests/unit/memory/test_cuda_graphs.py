"""Where full CUDA graphs end, against vLLM's own sizes and the steps that its runners capture."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm import platforms
from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

from vllm_eagle_ext.memory.footprint import FullGraphs, beyond_graphs, default_graphs, graphs_of

pytestmark = pytest.mark.promise("`plan` says where full CUDA graphs end, and which size captures all")

BATCH = 8192


def sizes_of(monkeypatch, k, max_num_seqs, capability=(9, 0), limit=None, batch=BATCH):
    """The sizes that vLLM captures, by its own function."""
    family = SimpleNamespace(is_device_capability_family=lambda asked: capability[0] == asked // 10)
    monkeypatch.setattr(platforms, "current_platform", family)
    compilation = SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, max_cudagraph_capture_size=limit,
        cudagraph_capture_sizes=None, post_init_cudagraph_sizes=lambda: None,
    )  # fmt: skip
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=batch),
        speculative_config=None,
        uniform_decode_query_len=1 + k,
        num_speculative_tokens=k,
        performance_mode="balanced",
    )
    VllmConfig._set_cudagraph_sizes(config)
    return compilation


def largest_on_v1(compilation, rows, max_num_seqs):
    adjusted = SimpleNamespace(**vars(compilation))
    CompilationConfig.adjust_cudagraph_sizes_for_spec_decode(adjusted, rows)
    usable = [size for size in adjusted.cudagraph_capture_sizes if size <= max_num_seqs * rows]
    return max(usable) // rows


def largest_on_v2(compilation, rows, max_num_seqs):
    manager = object.__new__(CudaGraphManager)
    captured = []
    vars(manager).update(
        compilation_config=compilation, cudagraph_mode=compilation.cudagraph_mode,
        max_num_reqs=max_num_seqs, decode_query_len=rows, varlen_decode=False,
        lora_capture_cases=[0], _maybe_ubatch_twin=lambda desc: captured.append(desc),
        _candidates={}, _capture_descs={},
        vllm_config=SimpleNamespace(
            speculative_config=None, num_speculative_tokens=rows - 1,
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
        ),
    )  # fmt: skip
    manager._init_candidates()
    return max(desc.num_reqs for desc in captured if desc.uniform_token_count == rows)


@pytest.mark.parametrize("k", [1, 3, 4, 7, 15, 16, 32])
@pytest.mark.parametrize("max_num_seqs", [1, 20, 100, 1024])
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_the_default(monkeypatch, k, max_num_seqs, capability):
    compilation = sizes_of(monkeypatch, k, max_num_seqs, capability)
    ours = default_graphs(k=k, max_num_seqs=max_num_seqs, fit=10**6, capability=capability)
    assert ours.tokens == compilation.max_cudagraph_capture_size
    assert ours.requests == largest_on_v1(compilation, 1 + k, max_num_seqs)
    assert ours.requests == largest_on_v2(compilation, 1 + k, max_num_seqs)


@pytest.mark.parametrize("k", [3, 4, 7, 15, 16])
@pytest.mark.parametrize("fit", [129, 171, 257])
def test_the_size_that_is_advised_captures_all(monkeypatch, k, fit):
    default = default_graphs(k=k, max_num_seqs=1024, fit=fit, capability=(9, 0))
    compilation = sizes_of(monkeypatch, k, 1024, limit=default.wanted)
    assert compilation.max_cudagraph_capture_size == default.wanted
    assert largest_on_v2(compilation, 1 + k, 1024) >= fit
    started = graphs_of(
        compilation.cudagraph_capture_sizes, k=k, max_num_seqs=1024, fit=fit, batch_tokens=BATCH
    )
    assert started.enough


def test_a_step_holds_no_more_than_a_batch():
    graphs = default_graphs(k=15, max_num_seqs=1024, fit=5000, capability=(9, 0))
    assert graphs.running == BATCH // 16
    assert graphs.wanted == BATCH


def test_the_sentence():
    graphs = FullGraphs(tokens=512, requests=32, running=90, rows=16, wanted=1440)
    assert beyond_graphs(graphs) == (
        "A step of up to 90 requests of 16 tokens can run, and full CUDA graphs end at 32 requests (512 "
        "tokens): --max-cudagraph-capture-size 1440 captures all, for more memory and a longer start."
    )
